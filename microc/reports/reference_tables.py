"""Tables of operators and options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from microc.base.immutable import frozen
from microc.compiler.options import COMPILING, OPTIONS, READING, STREAMING
from microc.frontend.keras import reader as keras_reader
from microc.frontend.onnx import reader as onnx_reader
from microc.frontend.onnx.context import FOLDS
from microc.frontend.tflite import reader as tflite_ops
from microc.frontend.torch import reader as torch_export
from microc.ops.attributes import Attribute
from microc.ops.registry import OpDef, registry

# ---- The tables of what microc knows: operators of the formats, and its own, read from the registries.

FORMATS = ("TFLite", "ONNX", "PyTorch", "Keras", "microc")
_ORDER = (
    *("float32", "float16", "bfloat16", "float64", "int4", "uint4", "int8", "uint8"),
    *("int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
)
_MANY = 8


@frozen
class OperatorRow:
    """One operator. ``dtypes``: of a TFLite operator's first output, of an ONNX operator's first input, of the first operand in
    the cases of one of our own; none where nothing is computed. ``note``: what else there is to say."""

    format: str
    name: str
    dtypes: tuple[str, ...]
    note: str = ""


def operator_rows() -> tuple[OperatorRow, ...]:
    """Every operator of every format, by format and name."""
    rows = [*_tflite(), *_onnx(), *_layers(), *_own()]
    return tuple(sorted(rows, key=lambda row: (FORMATS.index(row.format), "." in row.name, row.name)))


def _ordered(dtypes: Iterable[str]) -> tuple[str, ...]:
    known = [dtype for dtype in dict.fromkeys(dtypes) if dtype in _ORDER]
    return tuple(sorted(known, key=_ORDER.index))


def _tflite() -> Iterator[OperatorRow]:
    for code, spelling in tflite_ops.SPELLINGS.items():
        yield OperatorRow("TFLite", code, _ordered(spelling.dtypes))


def _onnx() -> Iterator[OperatorRow]:
    for domain, spellings in onnx_reader.SPELLINGS.items():
        for code, spelling in spellings.items():
            yield OperatorRow("ONNX", f"{domain}.{code}" if domain else code, _ordered(spelling.dtypes))
    for name, spelling in onnx_reader.CUSTOM.items():
        yield OperatorRow("ONNX", name.replace("::", "."), _ordered(spelling.dtypes))
    for code in FOLDS:
        if code not in onnx_reader.SPELLINGS[""]:
            yield OperatorRow("ONNX", code, (), "of constants and shapes")


def _layers() -> Iterator[OperatorRow]:
    for name in torch_export.SPELLINGS:
        yield OperatorRow("PyTorch", name, ())
    for name in keras_reader.SPELLINGS:
        yield OperatorRow("Keras", name, ())


def _own() -> Iterator[OperatorRow]:
    for name, operator in registry().items():
        cases = tuple(operator.cases())
        types = (case.types or operator.infer(case.attrs, ()) for case in cases)
        dtypes = _ordered(kinds[0].dtype for kinds in types if kinds)
        yield OperatorRow("microc", name, dtypes, f"{_form(operator)}, {len(cases)} cases{_edges(operator)}")


def _edges(operator: OpDef) -> str:
    return f". {operator.edges}" if operator.edges else ""


def _form(operator: OpDef) -> str:
    if operator.regions:
        return "control flow"
    if operator.expand is not None:
        return "name of others"
    if operator.view:
        return "view"
    return "elementwise" if operator.elementwise else "expression"


def spelled(dtypes: Sequence[str], every: Sequence[str]) -> str:
    """Dtypes in a cell: ``any`` where they are all that the format's operators take."""
    return "any" if len(dtypes) >= _MANY and tuple(dtypes) == tuple(every) else ", ".join(dtypes)


def widest(rows: Iterable[OperatorRow]) -> tuple[str, ...]:
    """The longest list of dtypes in a table that several rows share."""
    rows_of = Counter(row.dtypes for row in rows)
    return max(rows_of, key=lambda dtypes: (rows_of[dtypes] > 1, len(dtypes)), default=())


_OPERATORS_TITLES = {
    "TFLite": (
        "TFLite",
        "The dtypes are those of the first output. A `SLICE` whose begin is computed, and lies so that the part is not inside of "
        "the tensor, gives the nearest part that is; TFLite reads what happens to be there.",
    ),
    "ONNX": (
        "ONNX",
        "The dtypes are those of the first input. Floats between `DequantizeLinear` and `QuantizeLinear` are computed in "
        "integers; whatever depends on constants and shapes alone is computed when compiling, in any dtype. `Pow` of "
        "integers is rounded to zero from float64: what does not fit becomes the end of the range; squares wrap around.",
    ),
    "PyTorch": (
        "PyTorch",
        "ATen's operators after decomposition, and those of `quantized_decomposed`, whatever the overload; whatever depends on "
        "constants alone is computed by PyTorch.",
    ),
    "Keras": ("Keras", "Classes of layers, with channels last and float32."),
    "microc": (
        "microc's own",
        "What the formats' operators are made of, with the dtypes that their cases test: every case runs as numpy reference, as "
        "interpreted loops and as compiled C.",
    ),
}


_ATTRIBUTES = (
    "What the verifier holds every node to after every pass. Those without a value behind `=` have to be given, unless they may "
    "be left out."
)


def _attributes() -> str:
    """A table: attributes of one declaration, with the operators that have them."""
    owners: dict[tuple[str, Attribute], list[str]] = {}
    for name, operator in registry().items():
        for label, attribute in operator.attrs.items():
            owners.setdefault((label, attribute), []).append(name)
    lines = ["| attribute | of | values | what it says |", "|---|---|---|---|"]
    for (label, attribute), of in sorted(owners.items(), key=lambda item: item[0][0]):
        listed = " ".join(f"`{name}`" for name in of)
        lines.append(f"| `{label}` | {listed} | {attribute.spelled()} | {attribute.doc} |")
    return "\n".join(lines)


def operators_markdown() -> str:
    """The page ``docs/operators.md``."""
    rows = operator_rows()
    parts = ["# Operators", "Written by `microc operators --markdown`: do not edit."]
    for kind in FORMATS:
        own = [row for row in rows if row.format == kind]
        every = widest(own)
        title, text = _OPERATORS_TITLES[kind]
        legend = f" *any*: {', '.join(every)}." if any(spelled(row.dtypes, every) == "any" for row in own) else ""
        cells = [(f"`{row.name}`", spelled(row.dtypes, every) or "-", row.note) for row in own]
        noted = any(note for _, _, note in cells)
        lines = [
            f"| {len(own)} operators | dtypes |" + (" |" if noted else ""),
            "|---|---|" + ("---|" if noted else ""),
        ]
        lines += ["| " + " | ".join(c if noted else c[:2]) + " |" for c in cells]
        parts += [f"## {title}", text + legend, "\n".join(lines)]
    parts += ["## Attributes of microc's own", _ATTRIBUTES, _attributes()]
    return "\n\n".join(parts) + "\n"


# ---- The page of options, docs/options.md, and the rows of ``microc options``: what the table says, for people.

_HEAD = """# Options

Written by `make docs` from `microc/compiler/options.py`. In Python they are keywords of `microc.compile`, `microc.load`,
`microc.verify` and `microc.explain`; on the command line flags of every command that takes a model. What cannot be is refused
before anything is read. Their types are in `microc.CompileOptions`: editors complete them, mypy and pyright refuse a misspelt
one or a word that is none, and a function of yours that hands them on is `def mine(**options: Unpack[microc.CompileOptions])`.

A network that was compiled before, from the same file under the same options for the same board by the same compiler, comes
from a cache: `MICROC_CACHE`, or the user's folder for such (`~/.cache/microc` on Linux); an empty `MICROC_CACHE` means none. It
holds up to 512 MB of generated projects, weights included, and what was not used for longest goes first. Networks of Python
objects, and compilations with plugins, passes, rules or dumps are not kept.
"""
_PAGE_TITLES = {
    READING: "How a model is read",
    COMPILING: "How it is compiled",
    STREAMING: "How a sequence is streamed",
}


@frozen
class Row:
    """An option: its keyword, its flag with what follows it (empty: Python alone), and what it means."""

    name: str
    flag: str
    group: str
    applies: str
    help: str


def rows() -> Iterator[Row]:
    """Every option, in the order of the table."""
    for name, option in OPTIONS.items():
        value = "|".join(option.words) or option.metavar
        yield Row(
            name,
            f"{option.flag} {value}".strip() if option.flag else "",
            option.group,
            option.applies,
            option.description,
        )


def options_markdown() -> str:
    """The page."""
    lines = [_HEAD]
    for group, title in _PAGE_TITLES.items():
        lines += [f"## {title}", "", "| Python | command line | for | |", "|---|---|---|---|"]
        for row in rows():
            if row.group == group:
                flag = "`" + row.flag.replace("|", "\\|") + "`" if row.flag else ""
                lines.append(f"| `{row.name}` | {flag} | {row.applies} | {row.help.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)
