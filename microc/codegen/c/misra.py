# SPDX-License-Identifier: Apache-2.0
"""List the rules of MISRA C:2012 that generated C, the runtime and the ports do not follow, with the reason for each.

The page docs/misra.md is generated from this file. Categories of rules are those of MISRA C:2012 with amendments 1 and 2. No
mandatory rule is broken. Tests (``tests/misra``) require that every rule which cppcheck's MISRA addon reports for generated
projects is listed here, so the addon reports nothing for other rules.
"""

from __future__ import annotations

from microc.base.immutable import frozen
from microc.document.blocks import table, texts
from microc.document.renderers import render_markdown_table

# fmt: off
MANDATORY_RULES = frozenset({
    "9.1", "12.5", "13.6", "17.3", "17.4", "17.6", "19.1", "21.13", "21.17", "21.18", "21.19", "21.20", "22.2",
    "22.4", "22.5", "22.6",
})
"""Numbers of the mandatory rules of MISRA C:2012."""
ADVISORY_RULES = frozenset({
    "1.2", "2.3", "2.4", "2.5", "2.6", "2.7", "4.2", "5.9", "8.7", "8.9", "8.11", "8.13", "10.5", "11.4", "11.5",
    "12.1", "12.3", "12.4", "13.3", "13.4", "15.1", "15.4", "15.5", "17.5", "17.8", "18.4", "18.5", "19.2", "20.1",
    "20.5", "20.10", "21.12",
})
# fmt: on
"""Numbers of the advisory rules of MISRA C:2012. Rules that are neither advisory nor mandatory are required."""

GENERATED, RUNTIME, PORTS = "network", "runtime", "ports"
"""Parts of a project's C code: C printed for the network, the RPC runtime, and the board's port (registers and start-up)."""


@frozen
class Deviation:
    """A MISRA rule that the C of some parts of a project does not follow.

    ``parts`` are among :data:`GENERATED`, :data:`RUNTIME` and :data:`PORTS`. ``mistaken`` is True if the report of
    cppcheck's addon is a false positive."""

    rule: str
    parts: tuple[str, ...]
    reason: str
    mistaken: bool = False

    @property
    def category(self) -> str:
        return rule_category(self.rule)


def rule_category(rule: str) -> str:
    """Return the category of a MISRA rule: ``mandatory``, ``required`` or ``advisory``."""
    return "mandatory" if rule in MANDATORY_RULES else "advisory" if rule in ADVISORY_RULES else "required"


_ALL = (GENERATED, RUNTIME, PORTS)

REQUIRED_DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "2.2",
        (GENERATED,),
        "All lanes of a word are extracted by the same code, the lowest by a shift by 0. It costs no instruction.",
    ),
    Deviation(
        "5.1",
        (GENERATED,),
        "The name of a constant consists of network, layer and purpose, so two names can agree in their first 31 characters. All "
        "compilers of the boards distinguish at least 63. Equal names get a number.",
    ),
    Deviation("5.7", _ALL, "It treats enumerations and structures without a tag as tags of the same name.", True),
    Deviation(
        "8.5",
        (GENERATED,),
        "The descriptor of a network is declared in the file that defines it and in the file that lists the firmware's networks. "
        "Both are generated together, and no header is shared with a third file.",
    ),
    Deviation(
        "8.5",
        (PORTS,),
        "The vector table is declared in the file that defines it, and in a chip's boot header, which needs only its address.",
    ),
    Deviation(
        "8.14",
        (GENERATED,),
        "Pointers to weights and tables are restrict-qualified: no kernel writes to flash. Pointers into the arena are not.",
    ),
    Deviation("9.3", (GENERATED,), "It treats a vector type, which is one value in a register, as an array.", True),
    Deviation(
        "10.1",
        (GENERATED,),
        "Signed numbers are shifted right and masked. The C asserts at compile time that the compiler shifts arithmetically, as "
        "all compilers of the boards do. C defines int32_t as two's complement.",
    ),
    Deviation("10.3", (RUNTIME,), "A length is added to a pointer."),
    Deviation(
        "10.4",
        _ALL,
        "Small constants without a suffix are combined with unsigned numbers. Their value is the same in both types.",
    ),
    Deviation(
        "10.6",
        (GENERATED,),
        "A comparison selects one of two 8-bit constants. The sum has type int, and its value is below 64.",
    ),
    Deviation(
        "10.8",
        (GENERATED,),
        "64-bit products are narrowed after a shift that brings them into range, as the definition of fixed-point rounding "
        "requires. Signed numbers are shifted left as unsigned ones, for which overflow is defined.",
    ),
    Deviation("10.8", (PORTS,), "The address of a register is a sum of constants that is cast to a pointer."),
    Deviation(
        "11.8",
        (GENERATED, RUNTIME),
        "It reports the address of an element of an array that a structure points to, which is not a cast.",
        True,
    ),
    Deviation(
        "14.2",
        (PORTS,),
        "Start-up copies and clears memory between two linker symbols with two pointers.",
    ),
    Deviation(
        "20.7",
        (PORTS,),
        "The macro of a board's registers takes the names of three other macros, which cannot be parenthesised.",
    ),
    Deviation(
        "21.1",
        (PORTS,),
        "The port for PCs requests POSIX from the C library by the macro that POSIX defines for this purpose.",
    ),
    Deviation("21.10", (PORTS,), "The port for PCs gets the time from the operating system."),
    Deviation(
        "21.15", (GENERATED,), "memcpy copies the bits of a float into an integer, which is the defined way in C."
    ),
)

ADVISORY_DEVIATIONS: tuple[Deviation, ...] = (
    Deviation("2.3", _ALL, "A type in a header is used by some of the files that include it.", True),
    Deviation("2.4", _ALL, "Structure tags are part of a network's interface, which the application uses.", True),
    Deviation("2.5", _ALL, "Macros give a network's sizes and a board's addresses. No firmware uses all of them."),
    Deviation("2.7", _ALL, "Functions with a common interface have parameters that only some of them use."),
    Deviation("5.9", _ALL, "Names are short within a file, so several files have static functions of the same name."),
    Deviation("8.7", _ALL, "The application calls the functions of the interface; the project itself does not."),
    Deviation("8.9", _ALL, "Tables are defined at the top of their file, so that they are easy to find."),
    Deviation("8.11", (GENERATED, PORTS), "The sizes of the arena and of linker sections are defined elsewhere."),
    Deviation("11.4", _ALL, "Registers have addresses, and the descriptor gives the host the addresses of tensors."),
    Deviation(
        "11.5", (GENERATED, RUNTIME), "Tensors of all types share one arena, which is aligned for the widest type."
    ),
    Deviation("12.1", _ALL, "Products in sums have no parentheses. All other mixed expressions have them."),
    Deviation("12.3", _ALL, "It reports the commas in initialisers and parameter lists.", True),
    Deviation("13.3", (RUNTIME, PORTS), "A statement reads a byte and increments its pointer."),
    Deviation("15.5", _ALL, "Functions return as soon as an error is found, so that conditions are not nested."),
    Deviation("17.8", (RUNTIME, PORTS, GENERATED), "A parameter with the remaining length is decremented."),
    Deviation("18.4", _ALL, "Tensors are at offsets in the arena."),
    Deviation(
        "20.1",
        (GENERATED,),
        "The header of vector instructions is included inside the condition of the code that needs it.",
    ),
    Deviation("20.10", (GENERATED, PORTS), "Names of compile-time assertions are concatenated from parts."),
)

ANALYSERS: tuple[tuple[str, str], ...] = (
    (
        "bugprone-reserved-identifier",
        "Start-up code uses symbols of linker scripts, whose names are reserved.",
    ),
    ("cert-dcl37-c", "An alias of `bugprone-reserved-identifier`."),
    ("cert-dcl51-cpp", "An alias of `bugprone-reserved-identifier`."),
    (
        "bugprone-easily-swappable-parameters",
        "Kernels have neighbouring pointers of one type. One generated function calls them, with the operands in this order.",
    ),
    (
        "bugprone-implicit-widening-of-multiplication-result",
        "Offsets are computed in int32_t. microc proves that they fit, since a tensor has fewer than 2**31 bytes.",
    ),
)
"""clang-tidy's checks ``bugprone-*`` and ``cert-*`` that are disabled, each with the reason."""


def find_deviation(rule: str, code_part: str) -> Deviation | None:
    """Return the listed deviation from a MISRA rule in one part of a project; None if that part must follow the rule.

    ``code_part``: one of :data:`GENERATED`, :data:`RUNTIME` and :data:`PORTS`."""
    return next((d for d in REQUIRED_DEVIATIONS + ADVISORY_DEVIATIONS if d.rule == rule and code_part in d.parts), None)


def render_misra_page() -> str:
    """Return the text of the page docs/misra.md, in Markdown."""
    lines = [
        "# MISRA C:2012",
        "",
        "This page lists the rules that generated C does not follow, with the reason for each. Give it to whoever reviews",
        "your firmware. It is written by `make docs` from `microc/codegen/c/misra.py`. The tests in `tests/misra` check",
        "generated projects, the runtime and its ports with cppcheck's MISRA addon, clang-tidy and `gcc -fanalyzer`.",
        "",
        "No mandatory rule is broken, and every required rule that the addon checks and that is not listed is followed. A",
        "deviation applies to the named parts only:",
        "",
        "- *network*: the C that is printed for a model. A firmware of your own that calls the network has this part alone.",
        "- *runtime*: the code that answers the serial line.",
        "- *ports*: a board's registers and start-up.",
        "",
        *_format_deviation_table("Required rules", REQUIRED_DEVIATIONS),
        "",
        *_format_deviation_table("Advisory rules", ADVISORY_DEVIATIONS),
        "",
        "## Static analysers",
        "",
        "`gcc -fanalyzer` reports nothing. Of clang-tidy's `bugprone-*` and `cert-*` checks these are disabled; the others",
        "report nothing:",
        "",
        *(f"- `{name}`: {reason}" for name, reason in ANALYSERS),
    ]
    return "\n".join(lines) + "\n"


def _format_deviation_table(title: str, rows: tuple[Deviation, ...]) -> list[str]:
    """Return the lines of a Markdown table of deviations, under a heading with the text ``title``."""
    cells = (
        (row.rule, ", ".join(row.parts), f"False positive of the addon. {row.reason}" if row.mistaken else row.reason)
        for row in rows
    )
    return [f"## {title}", "", render_markdown_table(table(texts("rule", "where", ""), cells))]
