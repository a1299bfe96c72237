# SPDX-License-Identifier: Apache-2.0
"""Samples for a network from users' data, and the self-test that a network carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.source import shared_files
from microc.compiler import validation
from microc.errors import UnsupportedError, UsageError, VerificationError, similar_names_hint
from microc.module import Module, SelfTest, Value
from microc.plugin import PORTABLE
from microc.reports.summary import describe_value
from microc.run.comparison import largest_finite_magnitude, measure_differences
from microc.run.data.array_files import CLASSES, ROWS, contains_pictures, is_table_file, read_arrays
from microc.run.data.pictures import PictureReader, convert_samples, reshape_samples
from microc.run.desktop.load import build_library
from microc.run.engine import HostKernels, stack_outputs

# ---- Samples from users' data, with labels or expected outputs, from arrays, tables and folders.
#
# Every array has the samples along its first axis. Floats are reals: a quantised input quantises them, an integer input takes
# whole numbers. Integers of another dtype are taken if all fit and the input is not quantised; for a quantised input it would
# be ambiguous whether they are stored integers or reals. Every conversion is noted; everything else is refused.

_NUMBERED = "number the classes from 0 on: numpy.unique(labels, return_inverse=True)[1]"


@frozen
class Samples:
    """Samples for a network.

    ``inputs``: for each input of the network an array in its dtype, with shape (samples, ...). ``labels``: class number
    of each sample, None if unknown. ``expected``: expected outputs, by the output's name, as arrays with shape
    (samples, ...). ``notes``: texts that describe the conversions of dtypes and pictures."""

    inputs: tuple[Array, ...]
    labels: Array | None
    expected: Mapping[str, Array]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.inputs[0])

    def sample(self, number: int) -> tuple[Array, ...]:
        """Return the inputs of sample ``number``, for one inference."""
        return tuple(array[number] for array in self.inputs)


def read_samples(
    inputs: Sequence[Mapping[str, Any]],
    outputs: Sequence[Mapping[str, Any]],
    data_path: Path,
    labels: str = "",
    expected: Path | None = None,
    pixels: tuple[float, float] | None = None,
) -> Samples:
    """Read samples for a network whose tensors a manifest describes.

    ``data_path``: a .npz file (arrays by the names of inputs); a .npy file, table, picture or sound (one input); or a
    folder of .npy files, pictures or sounds, one per sample, perhaps in subfolders by class. ``labels``: an array or
    column of ``data_path`` by name, or a file. ``expected``: a .npz file (arrays by the names of outputs), or a .npy
    file or table (one output). ``pixels``: the reals for pixels 0 and 255
    (:class:`microc.run.data.pictures.PictureReader`). Raises UsageError if names, shapes, dtypes or numbers of samples
    do not match.
    """
    # A picture does not say which input it is for, so networks with several inputs do not take pictures.
    picture = PictureReader(inputs[0], pixels) if len(inputs) == 1 else None
    arrays = read_arrays(data_path, picture)
    truth = _pop_class_labels(arrays, labels, data_path)
    # Labels may be in the same file; they must not be mistaken for the only array of an input.
    input_arrays = {name: array for name, array in arrays.items() if name != (labels or CLASSES)}
    converted = [
        convert_samples(_select_array_for_tensor(input_arrays, tensor, len(inputs), data_path), tensor, data_path)
        for tensor in inputs
    ]
    expected_arrays = read_arrays(expected) if expected else {}
    answers = {
        t["name"]: reshape_samples(
            _select_array_for_tensor(expected_arrays, t, len(outputs), expected or data_path), t, expected or data_path
        )
        for t in outputs
        if expected_arrays and (len(outputs) == 1 or _find_name_of_tensor_array(expected_arrays, t))
    }
    # If no name matches, _select_array_for_tensor raises the error that lists the names.
    if expected_arrays and not answers:
        _select_array_for_tensor(expected_arrays, outputs[0], len(outputs), expected or data_path)
    notes = [picture.note()] if picture and contains_pictures(data_path) else []
    notes += [note for _, note in converted if note]
    samples = Samples(tuple(array for array, _ in converted), truth, answers, tuple(notes))
    _check_sample_counts(samples, inputs, data_path)
    return samples


def _pop_class_labels(arrays: dict[str, Array], labels: str, data_path: Path) -> Array | None:
    """Return the class number of each sample; None if there are no labels.

    ``labels``: name of an array or column of the data, or a file; if it is empty, the names of subfolders give the
    classes. A column of labels is removed from the table of samples. Raises UsageError if a label is no integer from 0
    on."""
    if not labels:
        return arrays.get(CLASSES)
    if labels in arrays:
        labels_array = arrays[labels]
        if is_table_file(data_path):
            column = list(arrays).index(labels) - 1
            arrays[ROWS] = np.delete(arrays[ROWS], column, axis=1)
    elif Path(labels).exists():
        arrays_in_file = read_arrays(Path(labels))
        labels_array = arrays_in_file[ROWS] if ROWS in arrays_in_file else next(iter(arrays_in_file.values()))
    else:
        names = sorted(name for name in arrays if name not in (ROWS, CLASSES))
        hint = (
            similar_names_hint(labels, names)
            or f"name a file, or an array of the data: {', '.join(names) or 'it has none'}"
        )
        raise UsageError(f"there are no labels {labels!r}", where=str(data_path), hint=hint)
    flat = labels_array.reshape(-1)
    if flat.dtype.kind not in "biuf" or np.any(np.mod(flat, 1) != 0) or np.any(flat < 0):
        raise UsageError(
            f"labels: got {flat.dtype} {validation.short_repr(flat[:4].tolist())}, expected class numbers",
            where=labels,
            hint=_NUMBERED,
        )
    return flat.astype(np.int64)


def _find_name_of_tensor_array(arrays: Mapping[str, Array], tensor: Mapping[str, Any]) -> str:
    """Return the name under which the array of a tensor is stored: the tensor's name or its label; empty if there is no
    such array."""
    return next((name for name in (tensor["name"], tensor["label"]) if name and name in arrays), "")


def _select_array_for_tensor(
    arrays: Mapping[str, Array], tensor: Mapping[str, Any], tensor_count: int, path: Path
) -> Array:
    """Return the array for a tensor: by the tensor's name, or the only array if there is only one such tensor.

    ``tensor_count``: number of inputs (or outputs) of the network. Raises UsageError if there is no such array."""
    name = _find_name_of_tensor_array(arrays, tensor)
    if name:
        return arrays[name]
    if tensor_count == 1 and ROWS in arrays:
        return arrays[ROWS]
    if tensor_count == 1 and len(arrays) == 1:
        return next(iter(arrays.values()))
    names = ", ".join(n or "one without a name" for n in arrays) or "none"
    raise UsageError(
        f"no array is called {tensor['name']!r}; got {names}",
        where=str(path),
        hint=f"name the arrays after the network's tensors: numpy.savez(path, {tensor['name']}=...)",
    )


def _check_sample_counts(samples: Samples, inputs: Sequence[Mapping[str, Any]], data_path: Path) -> None:
    """Raise UsageError unless inputs, labels and expected outputs all have the same number of samples, at least one."""
    lengths = {t["name"]: len(a) for t, a in zip(inputs, samples.inputs, strict=True)}
    lengths |= {f"expected {name}": len(array) for name, array in samples.expected.items()}
    if samples.labels is not None:
        lengths["labels"] = len(samples.labels)
    if len(set(lengths.values())) != 1 or not len(samples):
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        if not any(lengths.values()):
            raise UsageError(
                "data: got no samples, expected one at least", where=str(data_path), hint="give one at least"
            )
        hint = f"cut them to one length: array[:{min(lengths.values())}]"
        raise UsageError(f"the numbers of samples differ: {counts}", where=str(data_path), hint=hint)


# ---- Self-tests: samples in flash that the firmware runs at boot, with the outputs that this computer computed.

MAX_SELF_TEST_BYTES = 1 << 16
"""Bytes of flash that a self-test may take. It is meant for a few samples; an evaluation is `microc verify --data`."""
SELF_TEST_TOLERANCE = 1e-4
"""Tolerance for floats, relative to the largest magnitude of their output over all samples. Another order of summation
and other C libraries stay below it; a wrong weight that matters does not."""


def with_self_test(module: Module, data_path: Path) -> Module:
    """Return a module with a self-test added: samples from the path ``data_path`` (:func:`read_samples`), and the
    outputs that the network computes from them on this computer.

    For a network with state the samples are one sequence. If the file contains outputs, they must match the computed
    ones, integers exactly and floats within :data:`SELF_TEST_TOLERANCE`; else VerificationError. Raises UsageError for
    data that do not fit the network or take more than :data:`MAX_SELF_TEST_BYTES`."""
    if module.options["protocol"] == "mlperf":
        raise UsageError(
            "self_test cannot be combined with protocol mlperf, whose firmware has no self-test",
            hint="leave out self_test or protocol",
        )
    for name in module.outputs:
        if module.values[name].dtype in dtypes.HALF:
            raise UnsupportedError(
                f"self_test: got output {name!r} of {module.values[name].dtype}, expected float32 or integers",
                where=module.source,
                hint="convert it: --output-dtype float32",
            )
    samples = _read_self_test_samples(module, data_path)
    size = len(samples) * sum(module.values[name].nbytes for name in (*module.inputs, *module.outputs))
    if size > MAX_SELF_TEST_BYTES:
        raise UsageError(
            f"self_test: its {len(samples)} samples take {size:,} bytes of flash, expected at most {MAX_SELF_TEST_BYTES:,}",
            where=str(data_path),
            hint="give fewer samples, and measure accuracy by microc verify --data",
        )
    outputs = _run_samples_on_host(module, samples)
    for name, expected in samples.expected.items():
        _check_expected_output(name, expected, outputs[name], data_path)
    bounds = {
        name: SELF_TEST_TOLERANCE * float(np.abs(array).max(initial=0))
        for name, array in outputs.items()
        if dtypes.is_float(module.values[name].dtype)
    }
    names = _choose_self_test_constant_names(module)
    inputs = dict(zip(module.inputs, samples.inputs, strict=True))
    stored, answers = (
        {name: _flatten_samples_to_constant(names[name], array) for name, array in values.items()}
        for values in (inputs, outputs)
    )
    return replace(module, self_test=SelfTest(len(samples), stored, answers, bounds))


def _read_self_test_samples(module: Module, data_path: Path) -> Samples:
    """Read the samples of a self-test, with the expected outputs if the file contains outputs of the network."""
    inputs, outputs = ([describe_value(module, name) for name in names] for names in (module.inputs, module.outputs))
    if not inputs:
        raise UsageError(
            "self_test: got a network without inputs, expected one input at least",
            where=module.source,
            hint="leave out self_test",
        )
    output_names = {word for tensor in outputs for word in (tensor["name"], tensor["label"])}
    return read_samples(
        inputs, outputs, data_path, expected=data_path if output_names & set(read_arrays(data_path)) else None
    )


def _run_samples_on_host(module: Module, samples: Samples) -> dict[str, Array]:
    """Run all samples in order on this computer; return the outputs by name, samples along the first axis. Raises
    UsageError if an output is not finite."""
    engine = HostKernels(build_library(shared_files(module.own or module, __version__), f"-D{PORTABLE}"))
    rows = [engine.infer(samples.sample(number)).outputs for number in range(len(samples))]
    outputs = stack_outputs(rows, engine.outputs)
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(
                f"output {name!r} of the self-test holds infinities or NaN, expected finite numbers",
                where=module.source,
                hint="give samples whose outputs are finite",
            )
    return outputs


def _check_expected_output(name: str, expected: Array, computed: Array, data_path: Path) -> None:
    """Raise VerificationError if the ``computed`` output differs from the ``expected`` output that the file
    ``data_path`` contains."""
    is_float = computed.dtype.kind == "f"
    bound = SELF_TEST_TOLERANCE * largest_finite_magnitude(computed) if is_float else 0.0
    differs = measure_differences(expected, computed, is_float or expected.dtype.kind == "f").beyond(bound)
    if differs.any():
        sample = int(np.argwhere(differs)[0][0])
        wrong = int(np.count_nonzero(differs[sample]))
        raise VerificationError(
            f"{wrong} of {differs[sample].size} numbers of {name!r} differ from the expected output, in sample {sample + 1}",
            where=str(data_path),
            hint="leave out the outputs to expect the computed ones, or compare with the framework: microc verify --against",
        )


def _choose_self_test_constant_names(module: Module) -> Mapping[str, str]:
    """Choose unused names for the constants of the self-test; return them by the name of the input or output whose data
    the constant contains."""
    taken = set(module.values)

    def choose_unused_name(stem: str) -> str:
        name = next(candidate for candidate in _iterate_numbered_names(stem) if candidate not in taken)
        taken.add(name)
        return name

    return {name: choose_unused_name(f"test_{name}") for name in (*module.inputs, *module.outputs)}


def _iterate_numbered_names(stem: str) -> Iterable[str]:
    """Yield ``stem``, then ``stem`` followed by the numbers 2, 3 ..."""
    yield stem
    number = 2
    while True:
        yield f"{stem}_{number}"
        number += 1


def _flatten_samples_to_constant(name: str, array: Any) -> Value:
    """Flatten an array of all samples into one constant; 16-bit floats are stored as their bits."""
    flat: Array = np.ascontiguousarray(array).reshape(-1)
    stored = flat.view(np.uint16) if str(flat.dtype) in dtypes.HALF else flat
    return Value(name, stored.shape, str(stored.dtype), "const", stored)
