# SPDX-License-Identifier: Apache-2.0
"""Compare engines that run the same network: by output and by layer, or by the bits of single tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.interaction import Progress
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import UsageError, VerificationError
from microc.run.engine import Engine, InferenceResult, NetworkEngine, Tap

# ---- Differences of two arrays, by element. All comparisons count these.


@frozen
class Differences:
    """Differences of two arrays of one shape, by element.

    ``distance``: absolute difference (float64); 0 if one of two elements is not finite. ``mismatch``: mask (bool) of
    pairs with an element that is not finite, unless both are NaN or the same infinity."""

    distance: Array
    mismatch: Array

    def beyond(self, bound: float) -> Array:
        """Return a mask of the elements that mismatch, or whose distance exceeds ``bound``."""
        return np.asarray(self.mismatch | (self.distance > bound))


def measure_differences(ours: Array, theirs: Array, is_float: bool) -> Differences:
    """Measure the differences of two arrays by element.

    ``is_float``: compare as float64; else as integers, which are subtracted exactly whatever their widths."""
    if not is_float:
        a, b = (x.astype(object if x.dtype.kind == "u" and x.itemsize == 8 else np.int64) for x in (ours, theirs))
        return Differences(np.abs((a - b).astype(np.float64)), np.zeros(ours.shape, bool))
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        distance = np.where(finite, np.abs(a - b), 0.0)
    return Differences(distance, ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b))))


def largest_finite_magnitude(array: Array) -> float:
    """Return the largest finite magnitude of an array; 0 if it has none."""
    if array.dtype.kind in "biu":
        return float(max((abs(int(array.max())), abs(int(array.min()))), default=0)) if array.size else 0.0
    wide = np.abs(array.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


@frozen
class BitComparison:
    """Comparison of the bits of two arrays. ``wrong``: mask of the elements beyond the tolerance, in the arrays' shape;
    ``error``: the largest difference within the tolerance."""

    wrong: Array
    error: float


def compare_bits(ours: Array, theirs: Array, tolerance: float) -> BitComparison:
    """Compare two arrays of one shape and dtype bit by bit.

    ``tolerance``: tolerance of floats, relative to the largest magnitude of ``theirs``; with 0 their bits must be
    equal. NaN equals NaN of the same bits, or any NaN if there is a tolerance."""
    a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.itemsize) for x in (ours, theirs))
    differs = (a != b).any(axis=1).reshape(ours.shape)
    if not tolerance or ours.dtype.kind != "f" or not differs.any():
        return BitComparison(differs, 0.0)
    differences = measure_differences(ours, theirs, is_float=True)
    wrong = differs & differences.beyond(tolerance * largest_finite_magnitude(theirs))
    return BitComparison(wrong, float(differences.distance[differs & ~wrong].max(initial=0.0)))


# ---- Difference of two tensors, over all samples of a comparison.

TOLERANCES: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
)
"""Default tolerance by dtype, relative to the largest magnitude of the tensor.

If a sum of K products in float32 is computed in another order, it differs by at most K * 2**-24 times the sum of their
magnitudes, typically by about sqrt(K) * 2**-24: 1e-6 to 1e-5 for a layer with thousands of products. The differences of
tens of layers accumulate. Float16 and bfloat16 are rounded after every operator, by 2**-11 or 2**-8.
"""


WORDS = ("int16", "uint16")
WORD_QUANTA = 16
"""Default tolerance of 16-bit integers, in quanta, for a framework that sums their products in float32 (ONNX Runtime).

A product of 16 by 8 bits has 23 bits and float32 holds 24, so that sums are rounded. A result near a tie may then
differ by one quantum, which layers pass on. Measured: 5 quanta at most at the outputs of three U-Nets of 11 layers.
"""


@frozen
class Agreement:
    """Comparison of one tensor of the network with the same tensor of the framework, over all samples.

    ``layer``, ``op``: the layer and operator of the kernel that writes the tensor; empty for an output of the network.
    ``elements``: number of compared elements. ``differing``: number of elements whose values differ. ``wrong``: number
    of elements whose difference exceeds ``tolerance``, without undecided elements. ``undecided``: number of elements
    beyond ``tolerance`` that depend on rounding alone, such as the class of two equal scores. ``largest``: the largest
    absolute difference; for integers, in quanta (quantisation steps). ``relative``: for floats, ``largest`` divided by
    the largest magnitude of the framework's tensor; 0 for integers. ``cosine``: cosine of the angle between both
    tensors, None if one is all zeros. ``top``: share (0 to 1) of rows along the last axis whose largest element has the
    same index in both tensors, None if rows have a single element. ``tolerance``: relative to the largest magnitude for
    floats, in quanta for integers.
    """

    tensor: str
    dtype: str
    layer: str
    op: str
    elements: int
    differing: int
    wrong: int
    undecided: int
    largest: float
    relative: float
    cosine: float | None
    top: float | None
    tolerance: float

    @property
    def agrees(self) -> bool:
        """True if no element is beyond the tolerance."""
        return not self.wrong


@dataclass(slots=True)
class DifferenceTally:
    """Collector of the differences between a tensor of the network and the same tensor of the framework.

    ``tolerance``: relative to the largest magnitude for floats, in quanta for integers. ``pairs``: for each sample the
    network's array, the framework's, and the mask of undecided elements or None."""

    tensor: str
    dtype: str
    tolerance: float
    layer: str = ""
    op: str = ""
    pairs: list[tuple[Array, Array, Array | None]] = field(default_factory=list)

    def add(self, network_array: Array, framework_array: Array, undecided: Array | None = None) -> None:
        """Add the arrays of one sample, the network's and the framework's, in the same shape.

        ``undecided``: mask of the elements that depend on rounding alone, such as the class of two equal scores."""
        self.pairs.append((network_array, framework_array, undecided))

    def agreement(self) -> Agreement:
        """Compute the agreement over all samples that were added."""
        is_float = dtypes.is_float(self.dtype)
        elements = differing = wrong = undecided_count = rows = same_count = 0
        largest = dot = our_square = their_square = 0.0
        magnitude = max(
            (largest_finite_magnitude(framework_array) for _, framework_array, _ in self.pairs), default=0.0
        )
        bound = self.tolerance * magnitude if is_float else self.tolerance
        for network_array, framework_array, undecided in self.pairs:
            differences = measure_differences(network_array, framework_array, is_float)
            beyond = differences.beyond(bound)
            is_undecided = np.zeros(beyond.shape, bool) if undecided is None else undecided.reshape(beyond.shape)
            elements += network_array.size
            differing += int(np.count_nonzero(differences.beyond(0.0)))
            wrong += int(np.count_nonzero(beyond & ~is_undecided))
            undecided_count += int(np.count_nonzero(beyond & is_undecided))
            largest = max(largest, float(differences.distance.max(initial=0.0)))
            x, y = (
                np.nan_to_num(array.astype(np.float64).reshape(-1), posinf=0.0, neginf=0.0)
                for array in (network_array, framework_array)
            )
            dot, our_square, their_square = dot + float(x @ y), our_square + float(x @ x), their_square + float(y @ y)
            if network_array.ndim and network_array.shape[-1] > 1:
                tops = [v.reshape(-1, network_array.shape[-1]).argmax(axis=1) for v in (network_array, framework_array)]
                rows, same_count = rows + len(tops[0]), same_count + int(np.count_nonzero(tops[0] == tops[1]))
        lengths = (our_square * their_square) ** 0.5
        return Agreement(
            self.tensor,
            self.dtype,
            self.layer,
            self.op,
            elements,
            differing,
            wrong,
            undecided_count,
            largest,
            largest / magnitude if is_float and magnitude else 0.0,
            dot / lengths if lengths else None,
            same_count / rows if rows else None,
            self.tolerance,
        )


# ---- Comparison of a network with a reference on the same inputs.

_PERMUTED_SUFFIXES = (".moved", ".nhwc")
"""Suffixes of names of values whose axes the compiler has permuted."""
_MOST_AXES = 5


@frozen
class Comparison(Showable):
    """Comparison of a network and its framework on ``samples`` sets of inputs.

    ``reference``: name of the framework; ``version``: version of its package. ``outputs``: agreement of each output;
    these decide whether the network agrees. ``layers``: agreement of those results of kernels that have a name in the
    model, in the order of execution; they show in which layer the first difference occurs. ``uncompared``: outputs that
    the framework does not return.
    """

    reference: str
    version: str
    samples: int
    outputs: tuple[Agreement, ...]
    layers: tuple[Agreement, ...]
    uncompared: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """True if no element of an output is beyond the tolerance."""
        return all(output.agrees for output in self.outputs)

    @property
    def identical(self) -> bool:
        """True if all elements of all outputs are equal."""
        return all(not output.differing for output in self.outputs)

    @property
    def first(self) -> Agreement | None:
        """The first layer beyond the tolerance; None if there is none, or if no names match."""
        return next((layer for layer in self.layers if not layer.agrees), None)

    def __repr__(self) -> str:
        verdict = "identical" if self.identical else "agrees" if self.agrees else "differs"
        return f"<Comparison with {self.reference} {self.version}: {verdict}, {self.samples} samples>"

    def document(self) -> Document:
        """Return the differences of the outputs as a document, for a notebook."""
        rows = (
            (each.tensor, f"{each.wrong:,} of {each.elements:,} elements are off, by {each.largest:.6g} at most")
            for each in self.outputs
        )
        return document(facts(rows), title=f"{self.reference} {self.version}, {self.samples} samples")

    def error(self, where: str, hint: str = "", details: Mapping[str, Any] | None = None) -> VerificationError:
        """Return the error that names the worst output, its deviation and the first layer that differs."""
        worst = max((o for o in self.outputs if not o.agrees), key=lambda o: o.wrong / max(o.elements, 1))
        unit = f"{worst.largest:.6g}" if dtypes.is_float(worst.dtype) else f"{worst.largest:.0f} quanta"
        first_layer = (
            f"; the first layer that differs is {self.first.layer} ({self.first.tensor})" if self.first else ""
        )
        return VerificationError(
            f"the compiled network differs from {self.reference} {self.version}: {worst.wrong} of {worst.elements} elements of "
            f"{worst.tensor} are off, by {unit} at most{first_layer}",
            where=where,
            hint=hint,
            details=details,
        )


def compare_with_reference(
    network: NetworkEngine,
    reference: Engine,
    inputs: Sequence[Sequence[Array]],
    *,
    tolerance: float | None = None,
    quanta: int = 0,
    word_quanta: int = 0,
    output_names: Sequence[str] = (),
    layers: bool = True,
    network_names: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a network and a reference on sets of inputs, and compare their tensors.

    ``inputs``: for each set the arrays in the order of the network's inputs. State is reset once and continues from set
    to set. ``tolerance``: tolerance of floats, relative to the largest magnitude of a tensor; None for the values in
    :data:`TOLERANCES`. ``quanta``: tolerance of integers in quantisation steps. ``word_quanta``: lower bound of the
    tolerance of 16-bit integers, in quantisation steps. ``output_names``: names in the model of the network's outputs,
    if the network was cut out of the model. ``layers``: compare layers, too. ``network_names``: maps the reference's
    names of values to the network's; None: they are the same.

    Raises InputsRejected if the reference rejects the inputs, UsageError if it has no value with a name of
    ``output_names``, VerificationError if the numbers of elements of an output differ."""
    network.reset()
    reference.reset()
    taps: dict[str, DifferenceTally] = {}

    def create_tally(tensor: Mapping[str, Any], layer: str = "", op: str = "") -> DifferenceTally:
        dtype = tensor["dtype"]
        if dtypes.is_float(dtype):
            bound = TOLERANCES[dtype] if tolerance is None else tolerance
        else:
            bound = max(quanta, word_quanta) if dtype in WORDS else quanta
        return DifferenceTally(tensor["label"] or tensor["name"], dtype, bound, layer, op)

    outputs = [create_tally(tensor) for tensor in network.outputs]
    output_count = 0
    for number, arrays in enumerate(inputs):
        if progress is not None:
            progress(f"sample {number + 1}: {reference.name}", number, len(inputs))
        answer = reference.infer(arrays, taps=layers or bool(output_names))
        ours = network.infer(arrays, taps=layers)
        if layers:
            tensors = answer.tensors
            if network_names is not None:
                tensors = {network_names[n]: x for n, x in tensors.items() if n in network_names}
            _tally_taps(network.taps, ours.tensors, tensors, taps, create_tally)
        reference_outputs = _select_reference_outputs(answer, output_names, len(outputs))
        output_count = len(reference_outputs)
        for k, (tally, array, network_array) in enumerate(zip(outputs, reference_outputs, ours.outputs, strict=False)):
            tally.add(
                network_array,
                _reshape_reference_output(array, network_array, tally.tensor, reference),
                answer.undecided.get(k) if not output_names else None,
            )
    return Comparison(
        reference.name,
        reference.version,
        len(inputs),
        tuple(tally.agreement() for tally in outputs[:output_count]),
        tuple(tally.agreement() for tally in taps.values()),
        tuple(tally.tensor for tally in outputs[output_count:]),
    )


def _select_reference_outputs(
    answer: InferenceResult, output_names: Sequence[str], output_count: int
) -> Sequence[Array]:
    """Return the framework's values for the network's outputs, in order; fewer if it returns fewer.

    ``output_names``: names in the model of the network's outputs, if the network was cut out of the model; else empty.
    ``output_count``: number of the network's outputs. Raises UsageError if the framework has no value of such a
    name."""
    if not output_names:
        return answer.outputs[:output_count]
    missing = [name for name in output_names if name not in answer.tensors]
    if missing:
        raise UsageError(
            f"outputs: the framework returns no tensor {missing[0]!r}",
            hint="leave out outputs to compare the whole network",
        )
    return [answer.tensors[name] for name in output_names]


def _reshape_reference_output(framework_array: Array, network_array: Array, name: str, reference: Engine) -> Array:
    """Reshape an output of the framework to the shape of the network's output ``name``.

    Raises VerificationError if their numbers of elements differ."""
    if framework_array.size != network_array.size:
        raise VerificationError(
            f"output {name}: got shape {network_array.shape}, expected {framework_array.shape} as in {reference.name}"
        )
    return np.asarray(framework_array).reshape(network_array.shape)


def _tally_taps(
    network_taps: Sequence[Tap],
    network_tensors: Mapping[str, Array],
    reference_tensors: Mapping[str, Array],
    tallies: dict[str, DifferenceTally],
    create_tally: Callable[[Mapping[str, Any], str, str], DifferenceTally],
) -> None:
    """Add the results of kernels to the tallies, if the reference has tensors of the same names.

    ``network_tensors``: results of kernels by their C names. ``reference_tensors``: tensors by their names in the
    model. ``tallies``: tallies by C name; missing tallies are added."""
    for tap in network_taps:
        name = tap.tensor["name"]
        label, is_permuted = _strip_permutation_suffixes(tap.tensor["label"])
        reference_array = reference_tensors.get(label)
        if reference_array is None:
            continue
        network_array = network_tensors[name]
        permuted = _permute_to_kernel_shape(reference_array, network_array, is_permuted)
        if permuted is None or (permuted.dtype.kind == "f") != (network_array.dtype.kind not in "biu"):
            continue
        if name not in tallies:
            tallies[name] = create_tally({**tap.tensor, "label": label}, tap.layer, tap.op)
        tallies[name].add(network_array, permuted)


def _strip_permutation_suffixes(label: str) -> tuple[str, bool]:
    """Return a value's name without the suffixes that the compiler adds for permuted axes; and True if the name had
    such suffixes."""
    is_permuted = False
    while label.endswith(_PERMUTED_SUFFIXES):
        label, is_permuted = label.rpartition(".")[0], True
    return label, is_permuted


def _permute_to_kernel_shape(framework_array: Array, network_array: Array, is_permuted: bool) -> Array | None:
    """Permute or reshape the framework's tensor to the shape of the kernel's tensor; None if the shapes do not fit.

    ``is_permuted``: True if the compiler permuted the axes. If several permutations fit, the permutation with the least
    sum of absolute differences to the kernel's tensor is used."""
    if not is_permuted:
        return framework_array.reshape(network_array.shape) if framework_array.size == network_array.size else None
    if framework_array.ndim != network_array.ndim or framework_array.ndim > _MOST_AXES:
        return None
    candidates = list(_permutations_with_shape(framework_array, network_array.shape))
    return min(candidates, key=lambda x: float(np.nansum(np.abs(x.astype(np.float64) - network_array))), default=None)


def _permutations_with_shape(framework_array: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Yield the tensor with its axes permuted, for all permutations that result in ``shape``."""
    for axes in permutations(range(framework_array.ndim)):
        if tuple(framework_array.shape[axis] for axis in axes) == shape:
            yield framework_array.transpose(axes)
