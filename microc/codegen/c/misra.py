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
        "A shift by nothing stands where lanes of a word are written alike; it costs no instruction.",
    ),
    Deviation(
        "5.1",
        (GENERATED,),
        "Names of constants are a network's, a layer's and what they hold, and may agree in their first 31 characters. Every "
        "compiler that a board names tells at least 63 apart, and two that agree in all are given numbers.",
    ),
    Deviation("5.7", _ALL, "Enumerations and structures without a tag are taken for tags of one name.", True),
    Deviation(
        "8.5",
        (GENERATED,),
        "The descriptor of a network is declared where it is defined and where the firmware lists its networks: two files that "
        "are generated together, of which no third one includes either.",
    ),
    Deviation(
        "8.5",
        (PORTS,),
        "The table of vectors is declared where it is defined, and where a chip's boot header points to it without knowing what "
        "is in it.",
    ),
    Deviation(
        "8.14",
        (GENERATED,),
        "Weights and tables are restrict-qualified: nothing in a kernel writes to flash. Pointers into the arena never are.",
    ),
    Deviation("9.3", (GENERATED,), "A vector in a register is one value; the addon takes its type for an array.", True),
    Deviation(
        "10.1",
        (GENERATED,),
        "Signed numbers are shifted to the right and masked. Every network asserts when it is compiled that shifts are "
        "arithmetic, as with all compilers that boards name; C gives its integers of 32 bits two's complement.",
    ),
    Deviation("10.3", (RUNTIME,), "A pointer moves by a length."),
    Deviation(
        "10.4",
        _ALL,
        "Small constants without a suffix stand beside unsigned numbers: their value is the same in both types.",
    ),
    Deviation(
        "10.6",
        (GENERATED,),
        "A comparison chooses between two constants of 8 bits, whose sum is of int: its value is below 64.",
    ),
    Deviation(
        "10.8",
        (GENERATED,),
        "Products of 64 bits are narrowed after they were shifted into range, as the definition of fixed-point rounding has it, "
        "and a signed number is shifted as an unsigned one, where overflow is defined.",
    ),
    Deviation("10.8", (PORTS,), "A register's address is a sum of constants that becomes a pointer."),
    Deviation(
        "11.8", (GENERATED, RUNTIME), "An address in an array that a structure points to is no cast of one.", True
    ),
    Deviation(
        "14.2",
        (PORTS,),
        "Start-up copies and clears memory between two symbols of the linker, one pointer beside another.",
    ),
    Deviation(
        "20.7", (PORTS,), "The macro of a board's registers takes the names of three others, which cannot be bracketed."
    ),
    Deviation("21.1", (PORTS,), "The port of a PC asks its C library for POSIX, by the macro that POSIX names."),
    Deviation("21.10", (PORTS,), "The port of a PC has the time from its operating system."),
    Deviation("21.15", (GENERATED,), "The bits of a float are copied into an integer, the way that C defines."),
)

ADVISORY_DEVIATIONS: tuple[Deviation, ...] = (
    Deviation("2.3", _ALL, "A type of a header serves the files that need it.", True),
    Deviation("2.4", _ALL, "Tags of structures are the interface of a network, used by whoever calls it.", True),
    Deviation("2.5", _ALL, "Macros tell a network's sizes and a board's addresses; no firmware needs all."),
    Deviation("2.7", _ALL, "Functions behind one interface take what only some of them need."),
    Deviation("5.9", _ALL, "Files have static functions of one name, for names within a file are short."),
    Deviation("8.7", _ALL, "Functions of the interface are called by the application, not by the project itself."),
    Deviation("8.9", _ALL, "Tables stand at the head of their file, where they can be read."),
    Deviation("8.11", (GENERATED, PORTS), "The arena's and the linker's memory are as large as the other side says."),
    Deviation("11.4", _ALL, "Registers have addresses, and the descriptor tells the host where tensors lie."),
    Deviation("11.5", (GENERATED, RUNTIME), "Tensors of all types share one arena, aligned for the widest."),
    Deviation("12.1", _ALL, "Products in sums stand without brackets; all others are bracketed."),
    Deviation("12.3", _ALL, "Commas of initialisers and parameters.", True),
    Deviation("13.3", (RUNTIME, PORTS), "A byte is taken and its pointer moved in one line."),
    Deviation("15.5", _ALL, "What cannot go on returns at once; conditions do not nest."),
    Deviation("17.8", (RUNTIME, PORTS, GENERATED), "A length that is left to do is counted down where it came in."),
    Deviation("18.4", _ALL, "Tensors lie at offsets in the arena."),
    Deviation(
        "20.1", (GENERATED,), "The header of vector instructions stands behind the condition of the code that needs it."
    ),
    Deviation("20.10", (GENERATED, PORTS), "Assertions at compile time have names, which are put together."),
)

ANALYSERS: tuple[tuple[str, str], ...] = (
    (
        "bugprone-reserved-identifier",
        "Start-up names the symbols of linker scripts, which are in the compiler's name space.",
    ),
    ("cert-dcl37-c", "The same check by another name."),
    ("cert-dcl51-cpp", "The same."),
    (
        "bugprone-easily-swappable-parameters",
        "Kernels take pointers of one type side by side; one generated function calls them, from the same list of operands.",
    ),
    (
        "bugprone-implicit-widening-of-multiplication-result",
        "Offsets are computed in int32_t, in which the compiler proves that they fit; tensors have fewer than 2**31 bytes.",
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
        "Written by `make docs` from `microc/codegen/c/misra.py`; `tests/misra` holds generated projects, the runtime and",
        "its ports against it by cppcheck's MISRA addon, and by clang-tidy and `gcc -fanalyzer`.",
        "",
        "No mandatory rule is broken. The required rules below are, for the reasons given, in the parts named: the",
        "*network* is the C that is printed for a model, the *runtime* answers the serial line, *ports* are a board's",
        "registers and start-up. A firmware that calls the network itself has the first only. All other required rules",
        "that the addon checks are kept.",
        "",
        *_format_deviation_table("Required rules", REQUIRED_DEVIATIONS),
        "",
        *_format_deviation_table("Advisory rules that are not applied", ADVISORY_DEVIATIONS),
        "",
        "## Static analysers",
        "",
        "`gcc -fanalyzer` finds nothing. Of clang-tidy's `bugprone-*` and `cert-*` the following are left out; the others",
        "find nothing:",
        "",
        *(f"- `{name}`: {reason}" for name, reason in ANALYSERS),
    ]
    return "\n".join(lines) + "\n"


def _format_deviation_table(title: str, rows: tuple[Deviation, ...]) -> list[str]:
    """Return the lines of a Markdown table of deviations, under a heading with the text ``title``."""
    cells = (
        (row.rule, ", ".join(row.parts), f"The addon is mistaken: {row.reason}" if row.mistaken else row.reason)
        for row in rows
    )
    return [f"## {title}", "", render_markdown_table(table(texts("rule", "where", ""), cells))]
