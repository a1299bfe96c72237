# SPDX-License-Identifier: Apache-2.0
"""``microc verify``: compare the board with the host and the network with its framework, evaluate data, write evidence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.cli import show
from microc.cli.declared.board_commands import VerifyArguments
from microc.cli.project_context import (
    build_firmware,
    hold_weights,
    load_inputs,
    load_samples,
    open_project_of_source,
    pixel_range,
    progress_callback,
    serial_line_options,
)
from microc.document.blocks import Block, Document, Table, document, layer_names, numbers, prose, table, texts
from microc.errors import MicrocError, UsageError, VerificationError

if TYPE_CHECKING:
    from microc.compiler.options import Options
    from microc.run.board_project import Project
    from microc.run.comparison import Agreement
    from microc.run.data.samples import Samples
    from microc.run.desktop.library import Library
    from microc.run.session import Device
    from microc.run.verification import Answers, Classification, Closeness, LayerCheck


# ---- ``microc verify --evidence``: write the results as a bundle of files.


def check_evidence_folder(arguments: VerifyArguments) -> None:
    """Raise OutputError if the folder of ``--evidence`` is not empty. Called before the comparison, which is slow."""
    from microc.reports.evidence import check_evidence_folder_empty

    if arguments.evidence is not None:
        check_evidence_folder_empty(arguments.evidence)


def write_evidence(
    arguments: VerifyArguments, manifest: Mapping[str, Any], answer: show.Answer, project: Project | None = None
) -> show.Answer:
    """Write the evidence bundle of a verification if ``--evidence`` is given, even if the verification has failed.

    Return ``answer``, with the name of the folder added to its text. ``project``: the project that ran on its board, None if
    nothing ran on a board."""
    from microc.reports import evidence

    if arguments.evidence is None:
        return answer
    comparisons = list(_comparisons_of_answer(answer.data))
    failure = "" if answer.error is None else answer.error.what
    evidence_data = evidence.collect_evidence(
        manifest, comparisons, answer.data.get("evaluation"), failure, project, arguments.port
    )
    evidence.write_evidence_bundle(arguments.evidence, evidence_data)
    return replace(answer, document=answer.document + document(prose(f"evidence: {arguments.evidence}")))


def _comparisons_of_answer(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the comparisons that the data of an answer contain: of board and host, and of network and framework."""
    if "board" in data:
        board_data = {name: value for name, value in data.items() if name not in ("against", "evaluation")}
        agrees = "difference" not in data
        yield {"what": f"board {data['board']} against host, kernel by kernel", "agrees": agrees, **board_data}
    if "against" in data:
        framework_data = data["against"]
        yield {
            "what": f"compiled network against {framework_data['reference']} {framework_data['version']}",
            **framework_data,
        }


# ---- ``microc verify --against``: compare the outputs and layers of a compiled network with those of the model's framework.

_INTERFACE_OPTIONS = (
    "stream", "inputs", "outputs", "input_values", "input_dtype", "output_dtype", "input_layout", "output_layout",
)  # fmt: skip
"""Compilation options that change a network's inputs or outputs, so that a project cannot be compared with its model."""


@frozen
class FrameworkComparison:
    """The result of comparing a compiled network with its framework.

    ``data``: plain data; ``document``: the same for people; ``error``: None if all outputs agree."""

    data: dict[str, Any]
    document: Document
    error: MicrocError | None


def compile_source_library(arguments: VerifyArguments) -> Library:
    """Compile the model of the command line for this computer as a library."""
    from microc.compiler.options import make_options
    from microc.run.against import build_kernels_for_host, check_framework_for_file
    from microc.target import target_for

    options = make_options(**arguments.options)
    check_framework_for_file(arguments.source, arguments.against)
    return build_kernels_for_host(arguments.source, options, target_for("host"), progress_callback(arguments))


def compare_with_framework(
    arguments: VerifyArguments, library: Library, input_sets: Sequence[Sequence[Any]]
) -> FrameworkComparison:
    """Run a compiled network and the framework of its model on the same inputs, and compare their outputs and layers.

    ``input_sets``: sets of inputs; if it is empty, random inputs are drawn."""
    from microc.reports.evidence import hash_input_sets
    from microc.run import against
    from microc.run.data.samples import ALL_KINDS, draw_input_sets

    model, options = _model_and_options(arguments, library.manifest)
    reference = against.load_reference(model, arguments.against, options)
    graph = against.read_whole_graph(model, options)
    inputs = input_sets or draw_input_sets(
        library.manifest, library.inputs, arguments.samples, arguments.seed, kinds=ALL_KINDS, graph=graph
    )
    comparison = against.compare_library(
        library,
        reference,
        inputs,
        options,
        graph,
        arguments.tolerance,
        arguments.quanta,
        progress=progress_callback(arguments),
    )
    data = {
        "reference": comparison.reference,
        "version": comparison.version,
        "samples": comparison.samples,
        "data_sha256": hash_input_sets(inputs),
        "agrees": comparison.agrees,
        "identical": comparison.identical,
        "outputs": [_agreement_to_data(output) for output in comparison.outputs],
        "layers": [_agreement_to_data(layer) for layer in comparison.layers],
        "first_differing_layer": None if comparison.first is None else comparison.first.layer,
        "uncompared_outputs": list(comparison.uncompared),
    }
    shown = document(_agreement_table("output", comparison.outputs), _agreement_table("layer", comparison.layers))
    if not comparison.agrees:
        hint = _hint_about_difference(comparison.reference, options)
        return FrameworkComparison(data, shown, comparison.error(model.name, hint))
    exact = "every bit" if comparison.identical else "within the tolerance"
    total = sum(output.elements for output in comparison.outputs)
    end = f"{comparison.reference} {comparison.version} and the compiled network agree: {comparison.samples} samples, "
    end += f"{show.format_integer(total)} elements, {exact}"
    differing = sum(not layer.agrees for layer in comparison.layers)
    if differing:
        end += f"; {differing} layers on the way differ, which no output shows"
    if comparison.uncompared:
        end += f"; not compared, for {comparison.reference} has no such output: {', '.join(comparison.uncompared)}"
    return FrameworkComparison(data, shown + document(prose(end)), None)


def _model_and_options(arguments: VerifyArguments, manifest: Mapping[str, Any]) -> tuple[Path, Options]:
    """Return the path of the network's model, and the options with which it was compiled.

    For a project, the path is that of ``--model``. Raises UsageError if the project was compiled from another model, or with
    options that change its inputs or outputs."""
    from microc.compiler.options import make_options
    from microc.frontend.detect import read_model_bytes

    if not arguments.source.is_dir():
        if arguments.model_file is not None:
            raise UsageError("--model requires a project", hint="leave it out, or give the project's folder")
        return arguments.source, make_options(**arguments.options)
    assert arguments.model_file is not None
    made_from = manifest.get("sha256", {}).get("model", "")
    if made_from and hashlib.sha256(read_model_bytes(arguments.model_file)).hexdigest() != made_from:
        raise UsageError(
            "--model: the project was compiled from another model: the file's hash differs from that in manifest.json",
            where=str(arguments.model_file),
            hint="give the model that was compiled, or compile this one again",
        )
    options = manifest["options"]
    changed = [name for name in _INTERFACE_OPTIONS if name in options]
    if changed or manifest.get("sizes"):
        what = changed[0] if changed else "sizes that vary"
        raise UsageError(
            f"--model: got a project compiled with {what}, which changes its inputs or outputs",
            hint="compare the model instead: microc verify MODEL --against",
        )
    tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    shapes = (
        {tensors[n]["label"]: tuple(tensors[n]["shape"]) for n in manifest["inputs"]}
        if "input_shapes" in options
        else {}
    )
    return arguments.model_file, make_options(input_shapes=shapes, rounding=options.get("rounding", "tflm"))


def _hint_about_difference(reference: str, options: Options) -> str:
    """Return the hint about the likely reason for a difference between a network and its framework ``reference``."""
    wanted = {"litert": "litert", "tflm": "tflm"}.get(reference)
    if wanted and options.rounding != wanted:
        return f"compile with --rounding {wanted}, which is how {reference} rounds"
    if reference == "onnxruntime" and options.requantize == "fixed":
        return "--requantize float is what ONNX defines"
    if reference in ("litert", "onnxruntime") and options.hybrid == "float":
        return "layers that quantise data at run time are computed in floats unless --hybrid dynamic says otherwise"
    return "--tolerance and --quanta say what may differ; --json has every figure"


def _agreement_to_data(agreement: Agreement) -> dict[str, Any]:
    """Describe the agreement of a tensor with the same tensor of the framework as plain data."""
    return {
        **{name: show.replace_non_finite(value) for name, value in asdict(agreement).items()},
        "agrees": agreement.agrees,
    }


def _agreement_table(row_kind: str, rows: Sequence[Agreement]) -> Table | None:
    """Make a table that shows the agreement of a network's outputs or layers with the framework's; None without rows.

    ``row_kind``: ``output`` or ``layer``."""
    if not rows:
        return None
    is_of_layers = row_kind == "layer"
    cells = [
        (
            *((row.layer,) if is_of_layers else ()),
            row.tensor,
            row.elements,
            row.differing,
            f"{row.largest:.3g}" if "float" in row.dtype else f"{row.largest:.0f} q",
            row.relative if "float" in row.dtype else None,
            row.cosine,
            "" if row.top is None else f"{100 * row.top:.1f} %",
            _describe_agreement(row),
        )
        for row in rows
    ]
    columns = (
        *layer_names(*(("layer", "tensor") if is_of_layers else ("output",))), *numbers("elements", "differ", "largest"),
        *numbers("relative", spec=".1e"), *numbers("cosine", spec=".7f"), *numbers("top-1"), *texts(""),
    )  # fmt: skip
    return table(columns, cells)


def _describe_agreement(row: Agreement) -> str:
    """Return the verdict on a compared tensor.

    It is the number of elements beyond the tolerance, ``within`` if all are within it, or ``identical``."""
    if not row.agrees:
        return f"{show.format_integer(row.wrong)} beyond"
    return "within" if row.differing else "identical"


# ---- ``microc verify``: compare the board with the host, kernel by kernel, and evaluate both on the user's data.

_SHOWN_CLASSES = 20
_SHOWN_MISTAKES = 10


def run_verify_command(arguments: VerifyArguments) -> show.Answer:
    """Run ``microc verify``: compare the board with the host, and evaluate both on the user's data.

    With ``--against``, also compare the compiled network with the framework of its model."""
    from microc.run.board_project import build_host_library

    _check_verify_options(arguments)
    if arguments.against and not arguments.board and not arguments.source.is_dir():
        library = compile_source_library(arguments)
        samples, inputs = _load_user_data(arguments, library.manifest)
        answer = _add_framework_comparison(
            arguments, library, _user_input_sets(inputs, samples), show.Answer({}, document())
        )
        return write_evidence(arguments, library.manifest, answer)
    with open_project_of_source(arguments) as project:
        samples, inputs = _load_user_data(arguments, project.manifest)
        build_firmware(project, arguments)
        library = build_host_library(project)
        try:
            answer = _verify_on_board(arguments, project, library, inputs, samples)
        except VerificationError as error:
            failure = show.Answer(dict(error.details), document(), error=error)
            write_evidence(arguments, project.manifest, failure, project)
            raise
        if arguments.against:
            answer = _add_framework_comparison(arguments, library, _user_input_sets(inputs, samples), answer)
        return write_evidence(arguments, project.manifest, answer, project)


def _load_user_data(arguments: VerifyArguments, manifest: Mapping[str, Any]) -> tuple[Samples | None, list[Any]]:
    """Load the samples of ``--data`` (None without this option), and the sets of inputs of ``--input``."""
    inputs = [load_inputs(arguments, manifest)] if arguments.inputs else []
    samples = load_samples(arguments.data, arguments.labels, arguments.pixels, manifest, arguments.expected)
    return hold_weights(samples, manifest), inputs


def _verify_on_board(
    arguments: VerifyArguments, project: Project, library: Library, inputs: list[Any], samples: Samples | None
) -> show.Answer:
    """Compare the board with the host kernel by kernel, then evaluate both on the user's samples; return the answer."""
    from microc.run.session import Device

    with Device(project, **serial_line_options(arguments)) as device:
        data, checks, verdict = _compare_kernels(arguments, device, library, inputs, samples)
        data["self_test"], failed = device.self_test, device.failed_self_test()
        shown = document(checks, prose(verdict, *([f"self-test {device.self_test}"] if device.self_test else [])))
        if samples is not None:
            data["evaluation"], evaluation = _evaluate_samples(arguments, device, library, samples)
            shown += evaluation
    return show.Answer(data, shown, error=failed)


def _user_input_sets(inputs: list[Any], samples: Samples | None) -> list[Sequence[Any]]:
    """Return the user's sets of inputs: all samples of ``--data``, else the set of ``--input``."""
    return inputs if samples is None else [samples.sample(k) for k in range(len(samples))]


def _add_framework_comparison(
    arguments: VerifyArguments, library: Library, input_sets: Sequence[Sequence[Any]], answer: show.Answer
) -> show.Answer:
    """Compare the network with its framework; return ``answer`` with the result of this comparison added."""
    comparison = compare_with_framework(arguments, library, input_sets)
    shown = answer.document + comparison.document
    return show.Answer({**answer.data, "against": comparison.data}, shown, error=comparison.error or answer.error)


def _check_verify_options(arguments: VerifyArguments) -> None:
    """Raise UsageError for options of ``microc verify`` that cannot be combined, or that require other options."""
    if arguments.data is None and (arguments.labels or arguments.expected or arguments.answer):
        raise UsageError(
            "--labels, --expected and --answer require --data", hint="add it: microc verify firmware --data test.npz"
        )
    if arguments.samples < 1:
        raise UsageError(
            f"--samples: got {arguments.samples} samples, expected 1 at least", hint="give --samples 1 or more"
        )
    if arguments.against and arguments.source.is_dir() and arguments.model_file is None:
        raise UsageError(
            "--against requires --model for a project, which does not contain its model",
            hint="add the model that was compiled: --model FILE",
        )
    pixel_range(arguments.pixels, [*arguments.inputs, arguments.data])
    check_evidence_folder(arguments)
    if arguments.model_file is not None and not arguments.against:
        raise UsageError(
            "--model requires --against", hint="add it: microc verify firmware --against reference --model model.onnx"
        )
    if arguments.data is not None and arguments.inputs:
        raise UsageError("--input cannot be combined with --data", hint="give one of them")


def _compare_kernels(
    arguments: VerifyArguments, device: Device, library: Library, inputs: list[Any], samples: Samples | None
) -> tuple[dict[str, Any], Table, str]:
    """Compare the results of every kernel on the board with those on the host; return plain data, a table and the verdict.

    Raises VerificationError at the first difference. The error's details contain the kernels that have agreed before."""
    from microc.reports.evidence import hash_input_sets
    from microc.run.data.samples import draw_input_sets
    from microc.run.verification import TOLERANCE
    from microc.run.verification import compare_board_with_host as compare

    input_sets: Sequence[Sequence[Any]] = inputs or draw_input_sets(
        device.project.manifest, device.inputs, arguments.samples, arguments.seed
    )
    if samples is not None:
        input_sets = [samples.sample(k) for k in range(min(arguments.samples, len(samples)))]
    tolerance = TOLERANCE if arguments.tolerance is None else arguments.tolerance
    layers, difference = compare(device, library, input_sets, progress_callback(arguments), tolerance)
    name = device.project.board.name
    data: dict[str, Any] = {
        "board": name,
        "fingerprint": device.project.manifest["fingerprint"],
        "samples": len(input_sets),
        "data_sha256": hash_input_sets(input_sets),
        "elements": sum(c.elements for c in layers),
        "tolerance": tolerance,
        "identical": difference is None and all(c.error == 0 for c in layers),
        "layers": [asdict(c) for c in layers],
    }
    if difference is not None:
        details = {**data, "difference": {k: show.replace_non_finite(v) for k, v in asdict(difference).items()}}
        raise difference.error(f"board {name}", details)
    end = f"{name} and host agree: {len(input_sets)} samples, {show.format_integer(data['elements'])} elements, "
    exact = "every bit" if data["identical"] else "floats within the tolerance"
    return data, _kernel_checks_table(layers), f"{end}{exact}"


def _kernel_checks_table(layers: Sequence[LayerCheck]) -> Table:
    """Make a table of the kernels whose results were compared between board and host."""
    rows = [
        (str(c.kernel), c.layer, c.op, c.elements, f"within {c.error:.1e}" if c.error else "identical") for c in layers
    ]
    return table(
        (*texts("kernel"), *layer_names("layer"), *texts("operators"), *numbers("elements"), *texts("bits")), rows
    )


def _evaluate_samples(
    arguments: VerifyArguments, device: Device, library: Library, samples: Samples
) -> tuple[dict[str, Any], Document]:
    """Run all samples on board and host; return plain data and a document.

    They contain the number of samples with equal results, the accuracy if labels are known, and the difference from expected
    outputs if these are known."""
    from microc.run.engine import HostKernels
    from microc.run.verification import BoardKernels, classify, compare_answers, measure_closeness

    answers = compare_answers(BoardKernels(device), HostKernels(library), samples, progress_callback(arguments))
    tensors = {t["name"]: t for t in device.outputs}
    classes = None
    if samples.labels is not None:
        classes = classify(answers.outputs, tensors, samples.labels, arguments.answer)
    closenesses = [
        measure_closeness(answers.outputs[name], tensors[name], array) for name, array in samples.expected.items()
    ]
    data = {
        "samples": len(samples),
        "notes": list(samples.notes),
        "differing_samples": list(answers.differing_samples),
        "largest_deviation": answers.max_deviation,
        "classification": _classification_to_data(classes) if classes else None,
        "outputs": [asdict(c) for c in closenesses],
    }
    return data, document(*_evaluation_blocks(samples, answers, classes, closenesses))


def _classification_to_data(result: Classification) -> dict[str, Any]:
    """Describe a classification of samples as plain data."""
    return {
        "output": result.output,
        "correct": result.correct,
        "total": result.total,
        "accuracy": result.accuracy,
        "recall": [result.recall(k) for k in range(len(result.confusion))],
        "confusion": result.confusion.tolist(),
    }


def _evaluation_blocks(
    samples: Samples, answers: Answers, classes: Classification | None, closenesses: Sequence[Closeness]
) -> Iterator[Block | None]:
    """Yield the blocks about the evaluation of the user's samples.

    They state the number of equal results, the accuracy, and the difference from expected outputs."""
    equal_count = len(samples) - len(answers.differing_samples)
    agreement = (
        f"{show.format_integer(equal_count)} of {show.format_integer(len(samples))} answers are the host's in every bit"
    )
    if answers.differing_samples:
        agreement += f"; the largest deviation of the others is {answers.max_deviation:.2g}"
    yield prose(*samples.notes, agreement)
    if classes is not None:
        share = f"{classes.correct} of {classes.total}, {100 * classes.accuracy:.2f} %"
        yield prose(f"accuracy  {share} ({classes.output})")
        yield _confusion_or_mistakes_table(classes)
    if closenesses:
        rows = [(c.output, c.rmse, c.largest, c.cosine) for c in closenesses]
        columns = (*texts("output"), *numbers("RMSE", "largest difference", spec=".6g"), *numbers("cosine", spec=".9f"))
        yield table(columns, rows)


def _confusion_or_mistakes_table(result: Classification) -> Table | None:
    """Make a table of the confusion matrix of a classification; for many classes, of the most frequent mistakes instead.

    None if there are many classes, but no mistakes."""
    if len(result.confusion) > _SHOWN_CLASSES:
        rows = result.mistakes()[:_SHOWN_MISTAKES]
        return table(numbers("truth", "answer", "times", spec=""), rows) if rows else None
    return show.confusion_table(result.confusion.tolist())
