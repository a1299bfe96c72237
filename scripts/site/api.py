# SPDX-License-Identifier: Apache-2.0
"""The page of the Python interface: every name of ``microc.__all__``, from its docstring."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import microc

MODULES = ("errors", "te", "tir", "topi")
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Models": ("load", "save", "import_sklearn", "Graph"),
        "Compiling": (
            "compile",
            "bundle",
            "Program",
            "Bundle",
            "Bound",
            "CompileOptions",
            "report",
            "Report",
            "explain",
            "Explanation",
        ),
        "On this computer": ("Library", "load_library"),
        "On a board": ("open_project", "Device", "verify", "Comparison"),
        "Quantising": ("quantize", "Quantized", "fake_quantize"),
        "Tuning": ("tune",),
        "Graphs by hand": ("GraphBuilder", "Pass", "P", "Match", "Replacement", "rewrite"),
        "Loops by hand": ("build", "default_schedule", "Schedule", "ScheduleRule"),
    }
)
"""What belongs together; a name that is in none stands under the last heading, "More"."""
BEGIN = """# Python

Every name that `import microc` promises, from its docstring. Options of a compilation are keywords of the functions that take
`**options`: [Options](options.md). What is refused is an exception of `microc.errors`: [Errors](errors.md). The loop languages
`microc.te`, `microc.tir` and `microc.topi` have a page of their own: [Extend the compiler](compiler.md).
"""


def api_page() -> str:
    """Markdown for mkdocstrings."""
    named = {name for names in GROUPS.values() for name in names}
    more = tuple(name for name in microc.__all__ if name not in (*named, *MODULES) and not name.startswith("_"))
    groups = {**GROUPS, **({"More": more} if more else {})}
    parts = [BEGIN]
    for title, names in groups.items():
        parts.append(f"## {title}\n")
        parts += [f"::: microc.{name}\n" for name in names if name in microc.__all__]
    parts.append("## Modules\n")
    parts += [f"::: microc.{name}\n    options: {{members: false}}\n" for name in MODULES]
    return "\n".join(parts)
