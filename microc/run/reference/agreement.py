"""Compare the tensors of a compiled network with those of its framework, by output and by layer."""

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
from microc.codegen.render import html_table
from microc.compiler.interaction import Progress
from microc.errors import UsageError, VerificationError
from microc.run.desktop.library import Library
from microc.run.reference.frameworks import FrameworkAnswer, FrameworkRejectsInputs, Reference

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
            (_largest_finite_magnitude(framework_array) for _, framework_array, _ in self.pairs), default=0.0
        )
        bound = self.tolerance * magnitude if is_float else self.tolerance
        for network_array, framework_array, undecided in self.pairs:
            a, b = (
                x.astype(np.float64)
                if is_float
                else x.astype(object if x.dtype.kind == "u" and x.itemsize == 8 else np.int64)
                for x in (network_array, framework_array)
            )
            distance, is_special = _differences_and_mismatches(a, b)
            beyond = is_special | (distance > bound)
            is_undecided = np.zeros(beyond.shape, bool) if undecided is None else undecided.reshape(beyond.shape)
            elements, differing = elements + a.size, differing + int(np.count_nonzero(is_special | (distance != 0)))
            wrong, undecided_count = (
                wrong + int(np.count_nonzero(beyond & ~is_undecided)),
                undecided_count + int(np.count_nonzero(beyond & is_undecided)),
            )
            largest = max(largest, float(distance.max(initial=0.0)))
            x, y = (np.nan_to_num(v.astype(np.float64).reshape(-1), posinf=0.0, neginf=0.0) for v in (a, b))
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


def _largest_finite_magnitude(array: Array) -> float:
    """Return the largest finite magnitude of an array; 0 if it has none."""
    if array.dtype.kind in "biu":
        return float(max((abs(int(array.max())), abs(int(array.min()))), default=0)) if array.size else 0.0
    wide = np.abs(array.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def _differences_and_mismatches(network_array: Array, framework_array: Array) -> tuple[Array, Array]:
    """Return the absolute differences of two arrays by element, and a mask of mismatches with NaN or infinities.

    If one of two elements is not finite, their difference is 0, and the mask is True unless both are NaN or the same
    infinity."""
    if network_array.dtype.kind != "f":
        return np.abs((network_array - framework_array).astype(np.float64)), np.zeros(network_array.shape, bool)
    finite = np.isfinite(network_array) & np.isfinite(framework_array)
    with np.errstate(invalid="ignore"):
        distance = np.where(finite, np.abs(network_array - framework_array), 0.0)
    is_same = (network_array == framework_array) | (np.isnan(network_array) & np.isnan(framework_array))
    return distance, ~finite & ~is_same


# ---- Comparison of network and framework on the same inputs.

_PERMUTED_SUFFIXES = (".moved", ".nhwc")
"""Suffixes of names of values whose axes the compiler has permuted."""
_MOST_AXES = 5


@frozen
class Comparison:
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

    def _repr_html_(self) -> str:
        rows = [
            (each.tensor, f"{each.wrong:,} of {each.elements:,} elements are off, by {each.largest:.6g} at most")
            for each in self.outputs
        ]
        return html_table(f"{self.reference} {self.version}, {self.samples} samples", rows)

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
    library: Library,
    reference: Reference,
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
    """Run a compiled network and its framework on sets of inputs, and compare their tensors.

    ``inputs``: for each set the arrays in the order of the network's inputs. State is reset once and continues from set
    to set. ``tolerance``: tolerance of floats, relative to the largest magnitude of a tensor; None for the values in
    :data:`TOLERANCES`. ``quanta``: tolerance of integers in quantisation steps. ``word_quanta``: lower bound of the
    tolerance of 16-bit integers, in quantisation steps. ``output_names``: names in the model of the network's outputs,
    if the network was cut out of the model. ``layers``: compare layers, too. ``network_names``: maps the framework's
    names of values to the network's; None: they are the same.

    Raises UsageError if the framework rejects the inputs, or has no value with a name of ``output_names``."""
    library.reset()
    reference.reset()
    kernels = library.manifest["kernels"] if layers else []
    tallies: dict[str, DifferenceTally] = {}

    def create_tally(tensor: Mapping[str, Any], layer: str = "", op: str = "") -> DifferenceTally:
        dtype = tensor["dtype"]
        if dtypes.is_float(dtype):
            bound = TOLERANCES[dtype] if tolerance is None else tolerance
        else:
            bound = max(quanta, word_quanta) if dtype in WORDS else quanta
        return DifferenceTally(tensor["label"] or tensor["name"], dtype, bound, layer, op)

    outputs = [create_tally(tensor) for tensor in library.outputs]
    output_count = 0
    for number, arrays in enumerate(inputs):
        if progress is not None:
            progress(f"sample {number + 1}: {reference.name}", number, len(inputs))
        answer = _run_reference(reference, arrays)
        tensors = (
            answer.tensors
            if network_names is None
            else {network_names[n]: t for n, t in answer.tensors.items() if n in network_names}
        )
        for position, array in enumerate(arrays):
            library.set_input(position, array)
        if layers:
            for k, kernel in enumerate(kernels):
                library.run_kernel(k)
                _tally_kernel_outputs(library, kernel, tensors, tallies, create_tally)
        else:
            library.run()
        framework_outputs = _select_framework_outputs(answer, output_names, len(outputs))
        output_count = len(framework_outputs)
        for k, (tally, array) in enumerate(zip(outputs, framework_outputs, strict=False)):
            network_array = library.get_output(k)
            tally.add(
                network_array,
                _reshape_framework_output(array, network_array, tally.tensor, reference),
                answer.undecided.get(k) if not output_names else None,
            )
    return Comparison(
        reference.name,
        reference.version,
        len(inputs),
        tuple(tally.agreement() for tally in outputs[:output_count]),
        tuple(tally.agreement() for tally in tallies.values()),
        tuple(tally.tensor for tally in outputs[output_count:]),
    )


def _run_reference(reference: Reference, arrays: Sequence[Array]) -> FrameworkAnswer:
    """Run the framework; raise UsageError if it rejects the inputs."""
    try:
        return reference.run(arrays)
    except FrameworkRejectsInputs as error:
        raise UsageError(
            f"{reference.name} rejects the inputs: {error}",
            hint="give inputs that it accepts: --data or --input",
        ) from error


def _select_framework_outputs(
    answer: FrameworkAnswer, output_names: Sequence[str], output_count: int
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


def _reshape_framework_output(framework_array: Array, network_array: Array, name: str, reference: Reference) -> Array:
    """Reshape an output of the framework to the shape of the network's output ``name``.

    Raises VerificationError if their numbers of elements differ."""
    if framework_array.size != network_array.size:
        raise VerificationError(
            f"output {name}: got shape {network_array.shape}, expected {framework_array.shape} as in {reference.name}"
        )
    return np.asarray(framework_array).reshape(network_array.shape)


def _tally_kernel_outputs(
    library: Library,
    kernel: Mapping[str, Any],
    framework_tensors: Mapping[str, Array],
    tallies: dict[str, DifferenceTally],
    create_tally: Callable[[Mapping[str, Any], str, str], DifferenceTally],
) -> None:
    """Add a kernel's outputs to the tallies, if the framework has tensors of the same names.

    ``tallies``: tallies by the C name of the output; missing tallies are added. Call it right after the kernel, before
    a later kernel reuses the memory of its outputs."""
    tensors_by_name = {tensor["name"]: tensor for tensor in library.manifest["tensors"]}
    for name in kernel["outputs"]:
        tensor = tensors_by_name[name]
        label, is_permuted = _strip_permutation_suffixes(tensor["label"])
        framework_array = framework_tensors.get(label)
        if framework_array is None:
            continue
        network_array = library.tensor(name)
        permuted = _permute_to_kernel_shape(framework_array, network_array, is_permuted)
        if permuted is None or (permuted.dtype.kind == "f") != (network_array.dtype.kind not in "biu"):
            continue
        if name not in tallies:
            tallies[name] = create_tally({**tensor, "label": label}, kernel["layer"], kernel["op"])
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
