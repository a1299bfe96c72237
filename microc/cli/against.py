"""``microc verify --against``: the compiled network beside the framework that made the model, by output and by layer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import progress
from microc.cli.model_options import chosen_options
from microc.errors import MicrocError, UsageError
from microc.frozen import frozen

if TYPE_CHECKING:
    from microc.driver.desktop.library import Library
    from microc.driver.options import Options
    from microc.driver.reference.measures import Agreement

_CHANGING = ("stream", "inputs", "outputs", "input_dtype", "output_dtype", "input_layout", "output_layout")
"""Options of a project after which its network is another one than the model."""


@frozen
class Held:
    """What the comparison found: plain data, text, and the refusal where outputs differ."""

    data: dict[str, Any]
    text: str
    error: MicrocError | None


def compiled(arguments: Arguments) -> Library:
    """The network of a model's file as a library, for no board."""
    from microc.driver.measure.against import host_kernels
    from microc.driver.options import make_options
    from microc.driver.reference.choice import check_runtime
    from microc.target import target_for

    options = make_options(**chosen_options(arguments))
    check_runtime(arguments.source, arguments.against)
    return host_kernels(arguments.source, options, target_for("host"), progress(arguments))


def held(arguments: Arguments, library: Library, sets: Sequence[Sequence[Any]]) -> Held:
    """Run both. ``sets``: the user's inputs; none: random ones."""
    from microc.driver.measure import against
    from microc.driver.report.evidence import data_hash

    model, options = _model(arguments, library.manifest)
    reference = against.reference_of(model, arguments.against, options)
    graph = against.graph_of(model, options)
    inputs = sets or against.random_sets(library, graph, arguments.samples, arguments.seed)
    found = against.hold(
        library,
        reference,
        inputs,
        options,
        graph,
        arguments.tolerance,
        arguments.quanta,
        progress=progress(arguments),
    )
    data = {
        "reference": found.reference,
        "version": found.version,
        "samples": found.samples,
        "data_sha256": data_hash(inputs),
        "agrees": found.agrees,
        "identical": found.identical,
        "outputs": [_plain(output) for output in found.outputs],
        "layers": [_plain(layer) for layer in found.layers],
        "first_differing_layer": None if found.first is None else found.first.layer,
        "uncompared_outputs": list(found.uncompared),
    }
    text = "\n\n".join(filter(None, (_table("output", found.outputs), _table("layer", found.layers))))
    if not found.agrees:
        return Held(data, text, found.error(model.name, _hint(found.reference, options)))
    exact = "every bit" if found.identical else "within the tolerance"
    total = sum(output.elements for output in found.outputs)
    end = f"{found.reference} {found.version} and the compiled network agree: {found.samples} samples, "
    end += f"{show.count(total)} elements, {exact}"
    apart = sum(not layer.agrees for layer in found.layers)
    if apart:
        end += f"; {apart} layers on the way differ, which no output shows"
    if found.uncompared:
        end += f"; not compared, for {found.reference} has no such output: {', '.join(found.uncompared)}"
    return Held(data, f"{text}\n\n{end}", None)


def _model(arguments: Arguments, manifest: Mapping[str, Any]) -> tuple[Path, Options]:
    """The model's file and the options under which it was compiled; of a project, ``--model`` says which file."""
    from microc.driver.options import make_options
    from microc.frontend.detect import contents

    if not arguments.source.is_dir():
        if arguments.model_file is not None:
            raise UsageError("--model speaks of a project", hint="leave it out, or give the project's folder")
        return arguments.source, make_options(**chosen_options(arguments))
    assert arguments.model_file is not None
    made_from = manifest.get("sha256", {}).get("model", "")
    if made_from and hashlib.sha256(contents(arguments.model_file)).hexdigest() != made_from:
        raise UsageError(
            "the project was made from another model",
            where=str(arguments.model_file),
            hint="its hash is in manifest.json",
        )
    options = manifest["options"]
    changed = [name for name in _CHANGING if name in options]
    if changed or manifest.get("sizes"):
        what = changed[0] if changed else "sizes that vary"
        raise UsageError(
            f"the project was compiled with {what}", hint="compare the model: microc verify MODEL --against"
        )
    tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    shapes = (
        {tensors[n]["label"]: tuple(tensors[n]["shape"]) for n in manifest["inputs"]}
        if "input_shapes" in options
        else {}
    )
    return arguments.model_file, make_options(input_shapes=shapes, rounding=options.get("rounding", "tflm"))


def _hint(reference: str, options: Options) -> str:
    """What may be the reason of a difference."""
    wanted = {"litert": "litert", "tflm": "tflm"}.get(reference)
    if wanted and options.rounding != wanted:
        return f"compile with --rounding {wanted}, which is how {reference} rounds"
    if reference == "onnxruntime" and options.requantize == "fixed":
        return "--requantize float is what ONNX defines"
    if reference in ("litert", "onnxruntime") and options.hybrid == "float":
        return "layers that quantise data at run time are computed in floats unless --hybrid dynamic says otherwise"
    return "--tolerance and --quanta say what may differ; --json has every figure"


def _plain(found: Agreement) -> dict[str, Any]:
    return {**{name: show.plain(value) for name, value in asdict(found).items()}, "agrees": found.agrees}


def _table(what: str, rows: Sequence[Agreement]) -> str:
    """Outputs, or layers with the tensors that they make."""
    if not rows:
        return ""
    layers = what == "layer"
    cells = [
        (
            *((show.layer(row.layer), show.layer(row.tensor)) if layers else (show.layer(row.tensor),)),
            show.count(row.elements),
            show.count(row.differing),
            f"{row.largest:.3g}" if "float" in row.dtype else f"{row.largest:.0f} q",
            f"{row.relative:.1e}" if "float" in row.dtype else "",
            "" if row.cosine is None else f"{row.cosine:.7f}",
            "" if row.top is None else f"{100 * row.top:.1f} %",
            _verdict(row),
        )
        for row in rows
    ]
    names = ("layer", "tensor") if layers else ("output",)
    header = (*names, "elements", "differ", "largest", "relative", "cosine", "top-1", "")
    return show.table(header, cells, len(names))


def _verdict(row: Agreement) -> str:
    if not row.agrees:
        return f"{show.count(row.wrong)} beyond"
    return "within" if row.differing else "identical"
