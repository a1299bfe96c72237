# SPDX-License-Identifier: Apache-2.0
"""Reference tables of operators and of compilation options, for the documentation and for commands that list them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from microc.base.immutable import frozen
from microc.compiler.options import COMPILING, OPTIONS, READING, STREAMING
from microc.document.blocks import table, texts
from microc.document.renderers import render_markdown_table
from microc.frontend.keras import reader as keras_reader
from microc.frontend.onnx import reader as onnx_reader
from microc.frontend.onnx.context import CONSTANT_OPERATORS
from microc.frontend.tflite import reader as tflite_ops
from microc.frontend.torch import reader as torch_export
from microc.ops.attributes import Attribute
from microc.ops.registry import OpDef, registry

# ---- Operators of the model formats, and microc's own operators, read from the registries.

FORMATS = ("TFLite", "ONNX", "PyTorch", "Keras", "microc")
_DTYPE_ORDER = (
    *("float32", "float16", "bfloat16", "float64", "int4", "uint4", "int8", "uint8"),
    *("int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
)
"""Order of dtypes in the tables."""
_MIN_ABBREVIATED_DTYPES = 8
"""Least number of dtypes for which the complete list is abbreviated as ``any``."""


@frozen
class OperatorRow:
    """A row of the table of operators.

    ``format``: the model format that defines the operator, one of :data:`FORMATS`; ``dtypes``: the supported dtypes of the
    first output (TFLite), of the first input (ONNX), or of the first operand in the test cases (microc's own operators),
    empty if they are not listed; ``note``: other remarks."""

    format: str
    name: str
    dtypes: tuple[str, ...]
    note: str = ""


def operator_rows() -> tuple[OperatorRow, ...]:
    """Return a row for every operator of every format, sorted by format and name."""
    rows = [*_tflite_operator_rows(), *_onnx_operator_rows(), *_torch_and_keras_rows(), *_microc_operator_rows()]
    return tuple(sorted(rows, key=lambda row: (FORMATS.index(row.format), "." in row.name, row.name)))


def _sort_dtypes(dtypes: Iterable[str]) -> tuple[str, ...]:
    """Sort dtypes for a table, without duplicates and unknown dtypes."""
    known = [dtype for dtype in dict.fromkeys(dtypes) if dtype in _DTYPE_ORDER]
    return tuple(sorted(known, key=_DTYPE_ORDER.index))


def _tflite_operator_rows() -> Iterator[OperatorRow]:
    """Yield the rows of TFLite's operators."""
    for code, converter in tflite_ops.CONVERTERS.items():
        yield OperatorRow("TFLite", code, _sort_dtypes(converter.dtypes))


def _onnx_operator_rows() -> Iterator[OperatorRow]:
    """Yield the rows of ONNX's operators.

    These are operators of all domains, operators of plugins, and operators that are supported only for constant operands."""
    for domain, converters in onnx_reader.CONVERTERS.items():
        for code, converter in converters.items():
            dtypes = _sort_dtypes(converter.first_input_dtypes)
            yield OperatorRow("ONNX", f"{domain}.{code}" if domain else code, dtypes, converter.restrictions)
    for name, converter in onnx_reader.PLUGIN_CONVERTERS.items():
        yield OperatorRow("ONNX", name.replace("::", "."), _sort_dtypes(converter.first_input_dtypes))
    for code in CONSTANT_OPERATORS:
        if code not in onnx_reader.CONVERTERS[""]:
            yield OperatorRow("ONNX", code, (), "of constants and shapes")


def _torch_and_keras_rows() -> Iterator[OperatorRow]:
    """Yield the rows of PyTorch's operators and of Keras' layers."""
    for name in torch_export.CONVERTERS:
        yield OperatorRow("PyTorch", name, ())
    for name in keras_reader.CONVERTERS:
        yield OperatorRow("Keras", name, ())


def _microc_operator_rows() -> Iterator[OperatorRow]:
    """Yield the rows of microc's own operators, with the dtypes of their test cases."""
    for name, operator in registry().items():
        cases = tuple(operator.cases())
        types = (case.types or operator.infer(case.attrs, ()) for case in cases)
        dtypes = _sort_dtypes(result_types[0].dtype for result_types in types if result_types)
        yield OperatorRow(
            "microc", name, dtypes, f"{_operator_category(operator)}, {len(cases)} cases{_edge_case_note(operator)}"
        )


def _edge_case_note(operator: OpDef) -> str:
    """Return the remark about an operator's edge cases, preceded by a full stop; empty if there is none."""
    return f". {operator.edges}" if operator.edges else ""


def _operator_category(operator: OpDef) -> str:
    """Return the category of an operator: ``control flow``, ``name of others``, ``view``, ``elementwise`` or ``expression``.

    An operator of the category ``name of others`` expands into other operators."""
    if operator.regions:
        return "control flow"
    if operator.expand is not None:
        return "name of others"
    if operator.view:
        return "view"
    return "elementwise" if operator.elementwise else "expression"


def format_dtypes_cell(dtypes: Sequence[str], all_dtypes: Sequence[str]) -> str:
    """Format the dtypes of an operator for a table cell; ``any`` if they are all dtypes that operators of its format accept."""
    return "any" if len(dtypes) >= _MIN_ABBREVIATED_DTYPES and tuple(dtypes) == tuple(all_dtypes) else ", ".join(dtypes)


def longest_shared_dtypes(rows: Iterable[OperatorRow]) -> tuple[str, ...]:
    """Return the longest list of dtypes that several rows have in common; the table abbreviates this list as ``any``."""
    row_count = Counter(row.dtypes for row in rows)
    return max(row_count, key=lambda dtypes: (row_count[dtypes] > 1, len(dtypes)), default=())


_OPERATOR_SECTIONS = {
    "TFLite": (
        "TFLite",
        "The dtypes are those of the first output. If a `SLICE` with a computed begin exceeds the tensor, microc returns the "
        "nearest part inside the tensor. TFLite reads beyond the tensor there.",
    ),
    "ONNX": (
        "ONNX",
        "The dtypes are those of the first input; the last column lists inputs that must be constant, and attributes with a "
        "single supported value. Floats between `DequantizeLinear` and `QuantizeLinear` are computed in integers. "
        "Values that depend on constants and shapes alone are computed by the compiler, in any dtype. `Pow` of integers is "
        "computed in float64, rounded towards zero and saturated; squares wrap around.",
    ),
    "PyTorch": (
        "PyTorch",
        "ATen's operators after decomposition, and those of `quantized_decomposed`, in all overloads. PyTorch computes values "
        "that depend on constants alone.",
    ),
    "Keras": ("Keras", "Classes of layers, with channels last and float32."),
    "microc": (
        "microc's own",
        "microc converts the operators of all formats to these. The dtypes are those that tests cover: each test case runs as "
        "numpy reference, as interpreted loops and as compiled C.",
    ),
}


_ATTRIBUTES_TEXT = (
    "The verifier checks these attributes of every node after every pass. `=` precedes the default. An attribute without a "
    "default is required unless the table says that it may be left out."
)


def _attributes_markdown() -> str:
    """Format a Markdown table of operator attributes: a row for each declaration, with the operators that have it."""
    operators_of: dict[tuple[str, Attribute], list[str]] = {}
    for name, operator in registry().items():
        for label, attribute in operator.attrs.items():
            operators_of.setdefault((label, attribute), []).append(name)
    rows = [
        (f"`{label}`", " ".join(f"`{name}`" for name in of), attribute.describe(), attribute.doc)
        for (label, attribute), of in sorted(operators_of.items(), key=lambda item: item[0][0])
    ]
    return render_markdown_table(table(texts("attribute", "of", "values", "what it says"), rows))


def operators_markdown() -> str:
    """Return the text of the page ``docs/operators.md``."""
    rows = operator_rows()
    parts = ["# Operators", "Written by `microc operators --markdown`: do not edit."]
    for format_name in FORMATS:
        format_rows = [row for row in rows if row.format == format_name]
        all_dtypes = longest_shared_dtypes(format_rows)
        title, text = _OPERATOR_SECTIONS[format_name]
        legend = (
            f" *any*: {', '.join(all_dtypes)}."
            if any(format_dtypes_cell(row.dtypes, all_dtypes) == "any" for row in format_rows)
            else ""
        )
        cells = [(f"`{row.name}`", format_dtypes_cell(row.dtypes, all_dtypes) or "-", row.note) for row in format_rows]
        has_notes = any(note for _, _, note in cells)
        columns = texts(f"{len(format_rows)} operators", "dtypes", *([""] if has_notes else []))
        shown = table(columns, (cell[: len(columns)] for cell in cells))
        parts += [f"## {title}", text + legend, render_markdown_table(shown)]
    parts += ["## Attributes of microc's own", _ATTRIBUTES_TEXT, _attributes_markdown()]
    return "\n\n".join(parts) + "\n"


# ---- Options: the page docs/options.md and the rows of ``microc options``, from the table of options.

_OPTIONS_PAGE_HEAD = """# Options

Written by `make docs` from `microc/compiler/options.py`. In Python, options are keywords of `microc.compile`, `microc.load`,
`microc.verify` and `microc.explain`. On the command line they are flags of every command that takes a model. Impossible
combinations are rejected before the model is read. `microc.CompileOptions` has the types of all options: editors complete them,
mypy and pyright report misspelt options and values, and a function of yours passes them on as
`def mine(**options: Unpack[microc.CompileOptions])`.

microc keeps compiled projects, weights included, in a cache. It reuses a project if file, options, board and compiler are
the same. The folder is `MICROC_CACHE`, by default the user's cache folder (`~/.cache/microc` on Linux); an empty `MICROC_CACHE`
turns the cache off. The cache holds up to 512 MB; the projects that were unused for the longest time are removed first. Networks
of Python objects, and compilations with plugins, passes, rules or dumps are not kept. The cache also keeps the schedules that
were chosen for kernels: after a change of options, weights or other layers, equal kernels keep theirs. Plugins, passes,
instruments and rules alone turn that off.
"""
_PAGE_TITLES = {
    READING: "How a model is read",
    COMPILING: "How it is compiled",
    STREAMING: "How a sequence is streamed",
}


@frozen
class OptionRow:
    """A row of the table of compilation options.

    ``name``: the keyword in Python; ``flag``: the flag on the command line with its value, empty if the option exists in
    Python only; ``group``: heading of the section; ``applies``: models or boards to which the option applies, empty for
    all."""

    name: str
    flag: str
    group: str
    applies: str
    help: str


def compilation_option_rows() -> Iterator[OptionRow]:
    """Yield a row for every compilation option, in the order of :data:`microc.compiler.options.OPTIONS`."""
    for name, option in OPTIONS.items():
        value = "|".join(option.words) or option.metavar
        yield OptionRow(
            name,
            f"{option.flag} {value}".strip() if option.flag else "",
            option.group,
            option.applies,
            option.description,
        )


def options_markdown() -> str:
    """Return the text of the page ``docs/options.md``."""
    lines = [_OPTIONS_PAGE_HEAD]
    for group, title in _PAGE_TITLES.items():
        rows = [
            (f"`{row.name}`", f"`{row.flag}`" if row.flag else "", row.applies, row.help)
            for row in compilation_option_rows()
            if row.group == group
        ]
        shown = table(texts("Python", "command line", "for", ""), rows)
        lines += [f"## {title}", "", render_markdown_table(shown), ""]
    return "\n".join(lines)
