# SPDX-License-Identifier: Apache-2.0
"""TIR as text, in the style of TVMScript. The text has Python's syntax; it is parsed, but never executed.

``from_text(to_text(f)) == f`` for every function f."""

from microc.tir.text.parse import from_text, module_from_text
from microc.tir.text.print import format_expr, to_text

__all__ = ["format_expr", "from_text", "module_from_text", "to_text"]
