"""``microc verify``: board against host, layer by layer, and both on data of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from microc.cli import against, evidence, show
from microc.cli.arguments import Arguments
from microc.cli.compiling import progress
from microc.cli.session import build_firmware, line, load_inputs, opened_project, pixels, samples_of
from microc.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from microc.driver.data.samples import Samples
    from microc.driver.desktop.library import Library
    from microc.driver.measure.evaluate import Answers, Classification, Closeness
    from microc.driver.measure.firmware import Project
    from microc.driver.measure.session import Device
    from microc.driver.measure.verify import LayerCheck

_SHOWN_CLASSES = 20
_SHOWN_MISTAKES = 10


def verify(arguments: Arguments) -> show.Answer:
    """``microc verify``."""
    from microc.driver.measure.firmware import host_library

    _check(arguments)
    if arguments.against and not arguments.board and not arguments.source.is_dir():
        library = against.compiled(arguments)
        samples, given = _given(arguments, library.manifest)
        answer = _held(arguments, library, _sets(given, samples), show.Answer({}, ""))
        return evidence.recorded(arguments, library.manifest, answer)
    with opened_project(arguments) as project:
        samples, given = _given(arguments, project.manifest)
        build_firmware(project, arguments)
        library = host_library(project)
        try:
            answer = _on_board(arguments, project, library, given, samples)
        except VerificationError as error:
            evidence.recorded(arguments, project.manifest, show.Answer(dict(error.details), "", error=error), project)
            raise
        if arguments.against:
            answer = _held(arguments, library, _sets(given, samples), answer)
        return evidence.recorded(arguments, project.manifest, answer, project)


def _given(arguments: Arguments, manifest: Mapping[str, Any]) -> tuple[Samples | None, list[Any]]:
    """The user's samples, and one set of inputs, where there are any."""
    given = [load_inputs(arguments, manifest)] if arguments.inputs else []
    return samples_of(arguments, manifest, arguments.expected), given


def _on_board(
    arguments: Arguments, project: Project, library: Library, given: list[Any], samples: Samples | None
) -> show.Answer:
    """Board against host, and both on the user's samples."""
    from microc.driver.measure.session import Device

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
    found = against.held(arguments, library, sets)
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
    evidence.check(arguments)
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
    from microc.driver.measure.verify import TOLERANCE
    from microc.driver.measure.verify import samples as random_samples
    from microc.driver.measure.verify import verify as compare
    from microc.driver.report.evidence import data_hash

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
    from microc.driver.measure.evaluate import classify, closeness, run_samples

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
