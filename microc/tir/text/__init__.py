"""TIR as text, in the style of TVMScript: Python syntax that is parsed, never executed. ``from_text(to_text(f)) == f``."""

from microc.tir.text.parse import from_text, module_from_text
from microc.tir.text.print import expr_text, to_text

__all__ = ["expr_text", "from_text", "module_from_text", "to_text"]
