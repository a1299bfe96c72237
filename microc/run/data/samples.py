# SPDX-License-Identifier: Apache-2.0
"""Inputs of a network: the user's samples, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.source import shared_files
from microc.codegen.output_files import replace_atomically
from microc.codegen.project.manifest import learned_weights_digest
from microc.compiler import validation
from microc.compiler.sizes.general import RunShapes, as_array
from microc.errors import UnsupportedError, UsageError, VerificationError, similar_names_hint
from microc.graph.ir import Graph
from microc.module import Module, SelfTest, Value
from microc.ops import registry
from microc.plugin import PORTABLE
from microc.reports.report import describe_value
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


# ---- Random inputs of a network: ordinary values, extremes, and values near decisions of the network.
#
# Indices of a table stay within the table, since frameworks refuse others. Features of trees are on or next to
# the trees' thresholds, where a wrong comparison becomes visible.


Tensors = Sequence[Mapping[str, Any]]
"""A network's inputs, as a manifest describes them."""

SEED = 20
"""Default seed."""
ORDINARY, EXTREMES, ZEROS = "ordinary", "extremes", "zeros"
"""Kinds of a set of inputs.

``ordinary``: standard normal floats, integers over the whole dtype. ``extremes``: normal floats with standard deviation
:data:`_WIDE`, the lowest and highest integers of the dtype. ``zeros``: zeros, or zero points. The ``range`` of an input
replaces the range of its dtype. Bools are random in all kinds."""
ALL_KINDS = (ORDINARY, EXTREMES, ZEROS)

_WIDE = 8.0
"""Standard deviation of large floats: most activation functions saturate there."""

ValueGenerator = Callable[[tuple[int, ...], np.random.Generator], Array]
"""Generates an input's array of a shape."""


def draw_input_sets(
    manifest: Mapping[str, Any],
    inputs: Tensors,
    set_count: int,
    seed: int = SEED,
    *,
    kinds: Sequence[str] = (ORDINARY,),
    graph: Graph | None = None,
) -> list[list[Array]]:
    """Generate ``set_count`` sets of inputs from a seed: for each set an array per input.

    The ``kinds`` of sets alternate. If sizes of the network vary, which the ``manifest`` tells, the first set has the
    largest sizes and the others have random sizes. ``graph``: as for :func:`draw_inputs`. Raises UsageError if
    ``set_count`` is less than 1."""
    if set_count < 1:
        raise UsageError(f"samples: got {set_count}, expected 1 at least", hint="give 1 or more")
    generator, shapes, sets = np.random.default_rng(seed), RunShapes(manifest), []
    for kind in islice(cycle(kinds), set_count):
        sets.append(draw_inputs(inputs, generator, shapes, kind=kind, graph=graph))
        shapes.draw_sizes(generator)
    return sets


def draw_inputs(
    inputs: Tensors,
    generator: np.random.Generator,
    shapes: RunShapes | None = None,
    *,
    kind: str = ORDINARY,
    graph: Graph | None = None,
) -> list[Array]:
    """Generate one array for each input.

    ``shapes``: shapes for the sizes of this run, if sizes of the network vary; None for the largest sizes. ``graph``:
    the model as it was read, with inputs in the same order, to generate valid values for inputs that index tables or
    contain features of trees; None if unknown."""
    arrays = []
    for position, tensor in enumerate(inputs):
        shape = shapes.shape_of(tensor) if shapes else tuple(tensor["shape"])
        generate = _choose_generator_of_valid_inputs(graph, position) if graph is not None else None
        if generate is not None:
            arrays.append(generate(shape, generator).astype(dtypes.to_numpy(tensor["dtype"])))
        else:
            arrays.append(_draw_tensor(tensor, shape, kind, generator))
    return arrays


def _draw_tensor(tensor: Mapping[str, Any], shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> Array:
    """Generate values of a tensor's dtype for a set of a kind."""
    dtype = tensor["dtype"]
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if kind == ZEROS:
        return np.full(shape, tensor["zero_point"] or 0, dtypes.to_numpy(dtype))
    if dtypes.is_float(dtype):
        deviation = _WIDE if kind == EXTREMES else 1.0
        return (generator.standard_normal(shape) * deviation).astype(dtypes.to_numpy(dtype))
    low, high = tensor.get("range") or dtypes.int_range(dtype)
    if kind == EXTREMES:
        return generator.choice(np.array([low, high], dtypes.to_numpy(dtype)), shape)
    return generator.integers(low, high, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)


# ---- Inputs whose values decide: indices of tables, and features of decision trees.


def _choose_generator_of_valid_inputs(graph: Graph, position: int) -> ValueGenerator | None:
    """Return a generator of valid values for an input that indexes a table, or that contains features of decision
    trees; None for other inputs.

    Generated indices are within the table. Generated features are near the trees' thresholds. ``position``: position of
    the input in the graph."""
    name = graph.inputs[position]
    trees = [node for node in graph.nodes if node.op == "tree_ensemble" and node.inputs[0] == name]
    if trees:
        thresholds = [(graph.consts[node.inputs[1]], graph.consts[node.inputs[2]]) for node in trees]
        return _make_generator_near_thresholds(thresholds, graph.types[name].dtype)
    if graph.types[name].quant is not None or not dtypes.is_integer(graph.types[name].dtype):
        return None
    least_extent = min(_indexed_table_sizes(graph, name, set()), default=None)
    return None if least_extent is None else lambda shape, generator: generator.integers(0, max(least_extent, 1), shape)


def _indexed_table_sizes(graph: Graph, value_name: str, visited_values: set[str]) -> list[int]:
    """List the extents of the tables that a value indexes, directly or after operators that only move, cast or
    concatenate it.

    ``visited_values``: names of the values that were visited, extended by this function."""
    extents = []
    visited_values.add(value_name)
    for node in graph.nodes:
        if value_name not in node.inputs:
            continue
        if node.op == "gather" and node.inputs[1] == value_name:
            extents.append(graph.types[node.inputs[0]].shape[node.attr("axis")])
        elif node.op == "one_hot" and node.inputs[0] == value_name:
            extents.append(int(node.attr("depth")))
        elif (registry.get(node.op).moves or node.op in ("cast", "concat")) and node.outputs[0] not in visited_values:
            extents += _indexed_table_sizes(graph, node.outputs[0], visited_values)
    return extents


def _make_generator_near_thresholds(trees: Sequence[tuple[Array, Array]], dtype: str) -> ValueGenerator:
    """Return a generator that sets every feature to one of its thresholds, or to the next number below or above.

    A feature without thresholds is random. ``trees``: for each ensemble, arrays of feature numbers and thresholds."""
    feature, threshold = (np.concatenate([pair[k] for pair in trees]) for k in (0, 1))

    def draw(shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        x = _draw_tensor({"dtype": dtype}, shape, ORDINARY, generator)
        for column in np.unique(feature).tolist():
            thresholds = threshold[feature == column]
            thresholds = thresholds[np.isfinite(thresholds)] if thresholds.dtype.kind == "f" else thresholds
            if thresholds.size:
                x[:, column] = _next_representable(
                    generator.choice(thresholds, len(x)), generator.integers(-1, 2, len(x))
                )
        return x

    return draw


def _next_representable(numbers: Array, directions: Array) -> Array:
    """Step each number to the previous or next number that its dtype represents, or leave it unchanged.

    ``directions``: for each number -1 (the number before), 0 (itself) or 1 (the number after)."""
    if numbers.dtype.kind in "iu":
        info = np.iinfo(numbers.dtype)
        return np.clip(numbers.astype(np.int64) + directions, info.min, info.max)
    ends = np.where(directions < 0, -np.inf, np.inf).astype(numbers.dtype)
    return np.where(directions == 0, numbers, np.nextafter(numbers, ends))


# ---- Labels of a network that learns, as arrays.


def require_learning(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a network learns, from its manifest. Raises UsageError if it does not learn."""
    if "learning" not in manifest:
        raise UsageError(
            f"the network {manifest['model']!r} does not learn; got a firmware without --learn",
            where=manifest["source"],
            hint="compile it with --learn head.toml (docs/learning.md), build and flash it",
        )
    entry: Mapping[str, Any] = manifest["learning"]
    return entry


def convert_labels(labels: Any, tensor: Mapping[str, Any]) -> Array:
    """Convert the labels of one run to the dtype and shape of their input.

    Raises UsageError for a wrong number of labels, and for numbers that the dtype does not hold."""
    array, dtype, shape = as_array("labels", labels), dtypes.to_numpy(tensor["dtype"]), tuple(tensor["shape"])
    if array.size != prod(shape):
        raise UsageError(
            f"labels: got {array.size} numbers, expected {prod(shape)}, {tensor['dtype']} of shape {shape}",
            where=tensor["name"],
            hint="give the labels behind the network's inputs: device.learn(x, labels, rate=0.01)",
        )
    with np.errstate(invalid="ignore"):
        converted = array.astype(dtype).reshape(shape)
    if dtype.kind in "iu" and not np.array_equal(converted.astype(np.float64), array.astype(np.float64).reshape(shape)):
        raise UsageError(
            f"labels: got numbers that {tensor['dtype']} does not hold",
            where=tensor["name"],
            hint="number classes from 0",
        )
    return converted


# ---- Files of learned weights: an array for each tensor that learning changes, and the digest of the network.

_DIGEST = "network.sha256"
"""Name of the array with the digest; no tensor has this name, because it is no identifier."""


@frozen
class LearnedTensors:
    """The tensors that learning changes, weights and the optimiser's state, as a manifest describes them. ``digest``: SHA-256
    that tells networks apart."""

    tensors: tuple[Mapping[str, Any], ...]
    digest: bytes

    @property
    def identity(self) -> int:
        """Number that marks the network's saves on a board."""
        return int.from_bytes(self.digest[:4], "big")

    @property
    def sizes(self) -> list[int]:
        """Bytes of each tensor."""
        return [tensor["bytes"] for tensor in self.tensors]

    def to_bytes(self, arrays: Mapping[str, Array]) -> list[bytes]:
        """Return the little-endian bytes of each tensor, of arrays by name."""
        return [arrays[t["name"]].astype(arrays[t["name"]].dtype.newbyteorder("<")).tobytes() for t in self.tensors]

    def from_bytes(self, data: Sequence[bytes]) -> dict[str, Array]:
        """Return arrays by name of the little-endian bytes of each tensor."""
        arrays = {}
        for tensor, content in zip(self.tensors, data, strict=True):
            dtype = dtypes.to_numpy(tensor["dtype"])
            arrays[tensor["name"]] = (
                np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(tensor["shape"])
            )
        return arrays


def learned_tensors(manifest: Mapping[str, Any]) -> LearnedTensors:
    """Return the tensors that learning changes, from the manifest. Raises UsageError if the network does not learn."""
    by_name = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    tensors = tuple(by_name[name] for name in require_learning(manifest)["learned"])
    return LearnedTensors(tensors, learned_weights_digest(manifest["sha256"], tensors))


def write_weights(path: Path, learned: LearnedTensors, arrays: Mapping[str, Array]) -> None:
    """Write learned weights to a .npz file, with the digest of their network. Raises OutputError if it cannot be written."""
    digest = np.frombuffer(learned.digest, np.uint8)
    contents: dict[str, Any] = {**arrays, _DIGEST: digest}
    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **contents)


def read_weights(path: Path, learned: LearnedTensors) -> dict[str, Array]:
    """Read learned weights from a .npz file: an array for each tensor, by name.

    A file that microc has not written may leave out the digest. Raises UsageError unless names, shapes and dtypes are those of
    the tensors, and the digest that of the network."""
    arrays = read_arrays(path)
    digest = arrays.pop(_DIGEST, None)
    for tensor in learned.tensors:
        array = arrays.get(tensor["name"])
        found = "no such array" if array is None else f"{array.dtype} {array.shape}"
        if array is None or (array.dtype.name, array.shape) != (tensor["dtype"], tuple(tensor["shape"])):
            raise _other_network_error(
                path, f"; got {found} for {tensor['name']!r}, expected {tensor['dtype']} {tuple(tensor['shape'])}"
            )
    if unknown := sorted(arrays.keys() - {tensor["name"] for tensor in learned.tensors}):
        raise _other_network_error(path, f", which has {', '.join(unknown)[:200]}")
    if digest is not None and digest.tobytes() != learned.digest:
        raise _other_network_error(
            path, f"; got digest {digest.tobytes()[:8].hex()}..., expected {learned.digest[:8].hex()}..."
        )
    return arrays


def _other_network_error(path: Path, difference: str) -> UsageError:
    """Return the error for a file with the weights of another network. ``difference``: text behind this statement."""
    return UsageError(
        f"{path.name}: the weights are of another network{difference}",
        where=str(path),
        hint="restore what the same model with the same --learn has saved",
    )
