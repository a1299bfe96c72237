"""``microc verify``: board against host, network against framework, bundles of evidence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.project_context import build_firmware, line, load_inputs, opened_project, pixels, progress, samples_of
from microc.cli.shared_options import chosen_options
from microc.errors import MicrocError, UsageError, VerificationError

if TYPE_CHECKING:
    from microc.compiler.options import Options
    from microc.run.board_project import Project
    from microc.run.data.samples import Samples
    from microc.run.desktop.library import Library
    from microc.run.reference.agreement import Agreement
    from microc.run.session import Device
    from microc.run.verify import Answers, Classification, Closeness, LayerCheck


# ---- ``microc verify --evidence``: what a verification found, as a bundle of files.


def check(arguments: Arguments) -> None:
    """Refuse a folder that holds something, before anything is compared."""
    from microc.reports.evidence import refuse_taken

    if arguments.evidence is not None:
        refuse_taken(arguments.evidence)


def recorded(
    arguments: Arguments, manifest: Mapping[str, Any], answer: show.Answer, project: Project | None = None
) -> show.Answer:
    """The answer, after its bundle was written if one is wanted; of a difference, too."""
    from microc.reports import evidence

    if arguments.evidence is None:
        return answer
    comparisons = list(_comparisons(answer.data))
    failure = "" if answer.error is None else answer.error.what
    facts = evidence.gathered(manifest, comparisons, answer.data.get("evaluation"), failure, project, arguments.port)
    evidence.write(arguments.evidence, facts)
    return replace(answer, text=f"{answer.text}\n\nevidence: {arguments.evidence}")


def _comparisons(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What was compared: board and host, network and framework."""
    if "board" in data:
        own = {name: value for name, value in data.items() if name not in ("against", "evaluation")}
        agrees = "difference" not in data
        yield {"what": f"board {data['board']} against host, kernel by kernel", "agrees": agrees, **own}
    if "against" in data:
        found = data["against"]
        yield {"what": f"compiled network against {found['reference']} {found['version']}", **found}


# ---- ``microc verify --against``: the compiled network beside the framework that made the model, by output and by
# layer.

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
    from microc.compiler.options import make_options
    from microc.run.against import host_kernels
    from microc.run.reference.framework_choice import check_runtime
    from microc.target import target_for

    options = make_options(**chosen_options(arguments))
    check_runtime(arguments.source, arguments.against)
    return host_kernels(arguments.source, options, target_for("host"), progress(arguments))


def held(arguments: Arguments, library: Library, sets: Sequence[Sequence[Any]]) -> Held:
    """Run both. ``sets``: the user's inputs; none: random ones."""
    from microc.reports.evidence import data_hash
    from microc.run import against

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
    from microc.compiler.options import make_options
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


# ---- ``microc verify``: board against host, layer by layer, and both on data of the user's own.

_SHOWN_CLASSES = 20
_SHOWN_MISTAKES = 10


def verify(arguments: Arguments) -> show.Answer:
    """``microc verify``."""
    from microc.run.board_project import host_library

    _check(arguments)
    if arguments.against and not arguments.board and not arguments.source.is_dir():
        library = compiled(arguments)
        samples, given = _given(arguments, library.manifest)
        answer = _held(arguments, library, _sets(given, samples), show.Answer({}, ""))
        return recorded(arguments, library.manifest, answer)
    with opened_project(arguments) as project:
        samples, given = _given(arguments, project.manifest)
        build_firmware(project, arguments)
        library = host_library(project)
        try:
            answer = _on_board(arguments, project, library, given, samples)
        except VerificationError as error:
            recorded(arguments, project.manifest, show.Answer(dict(error.details), "", error=error), project)
            raise
        if arguments.against:
            answer = _held(arguments, library, _sets(given, samples), answer)
        return recorded(arguments, project.manifest, answer, project)


def _given(arguments: Arguments, manifest: Mapping[str, Any]) -> tuple[Samples | None, list[Any]]:
    """The user's samples, and one set of inputs, where there are any."""
    given = [load_inputs(arguments, manifest)] if arguments.inputs else []
    return samples_of(arguments, manifest, arguments.expected), given


def _on_board(
    arguments: Arguments, project: Project, library: Library, given: list[Any], samples: Samples | None
) -> show.Answer:
    """Board against host, and both on the user's samples."""
    from microc.run.session import Device

    with Device(project, **line(arguments)) as device:
        data, text = _compared(arguments, device, library, given, samples)
        data["self_test"], failed = device.self_test, device.failed_self_test()
        text += f"\nself-test {device.self_test}" if device.self_test else ""
        if samples is not None:
            found, more = _evaluated(arguments, device, library, samples)
            data["evaluation"] = found
            text += f"\n\n{more}"
    return show.Answer(data, text, error=failed)


def _sets(given: list[Any], samples: Samples | None) -> list[Sequence[Any]]:
    """The user's inputs, all of them."""
    return given if samples is None else [samples.sample(k) for k in range(len(samples))]


def _held(arguments: Arguments, library: Library, sets: Sequence[Sequence[Any]], answer: show.Answer) -> show.Answer:
    """The answer so far, and what the framework says; with its error where outputs differ."""
    found = held(arguments, library, sets)
    together = "\n\n".join(filter(None, (answer.text, found.text)))
    return show.Answer({**answer.data, "against": found.data}, together, error=found.error or answer.error)


def _check(arguments: Arguments) -> None:
    if arguments.data is None and (arguments.labels or arguments.expected or arguments.answer):
        raise UsageError(
            "--labels, --expected and --answer speak of --data", hint="microc verify firmware --data test.npz"
        )
    if arguments.samples < 1:
        raise UsageError(f"cannot verify {arguments.samples} samples", hint="--samples 1 is the least")
    if arguments.against and arguments.source.is_dir() and arguments.model_file is None:
        raise UsageError(
            "a project does not hold the model that it was made from", hint="add --model FILE, which was compiled"
        )
    pixels(arguments)
    check(arguments)
    if arguments.model_file is not None and not arguments.against:
        raise UsageError(
            "--model speaks of --against", hint="microc verify firmware --against reference --model model.onnx"
        )
    if arguments.data is not None and arguments.inputs:
        raise UsageError("--input is one set of inputs, --data many", hint="give one of them")


def _compared(
    arguments: Arguments, device: Device, library: Library, given: list[Any], samples: Samples | None
) -> tuple[dict[str, Any], str]:
    """The comparison kernel by kernel; VerificationError at the first difference, which says what agreed before."""
    from microc.reports.evidence import data_hash
    from microc.run.verify import TOLERANCE
    from microc.run.verify import samples as random_samples
    from microc.run.verify import verify as compare

    inputs: Sequence[Sequence[Any]] = given or random_samples(device, arguments.samples, arguments.seed)
    if samples is not None:
        inputs = [samples.sample(k) for k in range(min(arguments.samples, len(samples)))]
    tolerance = TOLERANCE if arguments.tolerance is None else arguments.tolerance
    layers, difference = compare(device, library, inputs, progress(arguments), tolerance)
    name = device.project.board.name
    data: dict[str, Any] = {
        "board": name,
        "fingerprint": device.project.manifest["fingerprint"],
        "samples": len(inputs),
        "data_sha256": data_hash(inputs),
        "elements": sum(c.elements for c in layers),
        "tolerance": tolerance,
        "identical": difference is None and all(c.error == 0 for c in layers),
        "layers": [asdict(c) for c in layers],
    }
    if difference is not None:
        details = {**data, "difference": {k: show.plain(v) for k, v in asdict(difference).items()}}
        raise difference.error(f"board {name}", details)
    end = f"{name} and host agree: {len(inputs)} samples, {show.count(data['elements'])} elements, "
    exact = "every bit" if data["identical"] else "floats within the tolerance"
    return data, f"{_layers(layers)}\n\n{end}{exact}"


def _layers(layers: Sequence[LayerCheck]) -> str:
    rows = [
        (
            c.kernel,
            show.layer(c.layer),
            c.op,
            show.count(c.elements),
            f"within {c.error:.1e}" if c.error else "identical",
        )
        for c in layers
    ]
    return show.table(("kernel", "layer", "operators", "elements", "bits"), rows, 3)


def _evaluated(arguments: Arguments, device: Device, library: Library, samples: Samples) -> tuple[dict[str, Any], str]:
    """The answers to all samples: how many are the host's bit by bit, and how good they are."""
    from microc.run.verify import classify, closeness, run_samples

    answers = run_samples(device, library, samples, progress(arguments))
    tensors = {t["name"]: t for t in device.outputs}
    classes = None
    if samples.labels is not None:
        classes = classify(answers.outputs, tensors, samples.labels, arguments.answer)
    near = [closeness(answers.outputs[name], tensors[name], array) for name, array in samples.expected.items()]
    data = {
        "samples": len(samples),
        "notes": list(samples.notes),
        "differing_samples": list(answers.differing),
        "largest_deviation": answers.deviation,
        "classification": _classification(classes) if classes else None,
        "outputs": [asdict(c) for c in near],
    }
    return data, "\n\n".join(_paragraphs(samples, answers, classes, near))


def _classification(found: Classification) -> dict[str, Any]:
    return {
        "output": found.output,
        "correct": found.correct,
        "total": found.total,
        "accuracy": found.accuracy,
        "recall": [found.recall(k) for k in range(len(found.confusion))],
        "confusion": found.confusion.tolist(),
    }


def _paragraphs(
    samples: Samples, answers: Answers, classes: Classification | None, near: Sequence[Closeness]
) -> Iterator[str]:
    same = len(samples) - len(answers.differing)
    agree = f"{show.count(same)} of {show.count(len(samples))} answers are the host's in every bit"
    if answers.differing:
        agree += f"; the largest deviation of the others is {answers.deviation:.2g}"
    yield "\n".join((*samples.notes, agree))
    if classes is not None:
        share = f"{classes.correct} of {classes.total}, {100 * classes.accuracy:.2f} %"
        yield f"accuracy  {share} ({classes.output})\n\n{_confusion(classes)}".rstrip()
    if near:
        rows = [
            (c.output, f"{c.rmse:.6g}", f"{c.largest:.6g}", "" if c.cosine is None else f"{c.cosine:.9f}") for c in near
        ]
        yield show.table(("output", "RMSE", "largest difference", "cosine"), rows)


def _confusion(found: Classification) -> str:
    """The matrix, or of many classes the most frequent mistakes."""
    if len(found.confusion) > _SHOWN_CLASSES:
        rows = found.mistakes()[:_SHOWN_MISTAKES]
        return show.table(("truth", "answer", "times"), rows, 0) if rows else ""
    return show.confusion(found.confusion.tolist())
