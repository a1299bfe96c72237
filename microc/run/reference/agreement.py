"""A compiled network against its framework: how far tensors are apart."""

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
from microc.compiler.representation import table
from microc.errors import UsageError, VerificationError
from microc.run.desktop.library import Library
from microc.run.reference.frameworks import Answer, Reference, RuntimeRefusal

# ---- How far two tensors are apart, over all samples of a comparison.

TOLERANCES: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
)
"""What floats may differ by unless told, relative to the largest magnitude of the tensor.

A sum of K products in another order moves by K * 2**-24 of the sum of their sizes at most, by about sqrt(K) * 2**-24 as a
rule: 1e-6 to 1e-5 for a layer of float32 with thousands of products, which tens of layers hand on and add to. Halves are rounded
behind every operator, by 2**-11 or 2**-8.
"""


@frozen
class Agreement:
    """One tensor of the network against the framework's, over all samples.

    ``differing`` of ``elements`` differ in any bit of their value; ``largest``: the largest absolute difference, of stored
    integers in quanta; ``relative``: the same over the largest magnitude of the framework's tensor (floats); ``cosine`` of the
    angle between both (None where one is all zeros); ``top``: the share of rows whose largest element is in the same place
    (None where rows have one). ``wrong``: elements beyond ``tolerance``, not counting the ``undecided``, which rounding decides.
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
        return not self.wrong


@dataclass(slots=True)
class Tally:
    """A tensor's differences so far. ``tolerance``: for floats, relative to the largest magnitude; for integers, in quanta."""

    tensor: str
    dtype: str
    tolerance: float
    layer: str = ""
    op: str = ""
    pairs: list[tuple[Array, Array, Array | None]] = field(default_factory=list)

    def add(self, mine: Array, theirs: Array, undecided: Array | None = None) -> None:
        """What both gave for one sample, in one shape."""
        self.pairs.append((mine, theirs, undecided))

    def agreement(self) -> Agreement:
        """The figures over all samples."""
        real = dtypes.is_float(self.dtype)
        elements = differing = wrong = free = rows = same = 0
        largest = dot = mine_length = their_length = 0.0
        most = max((_largest(theirs) for _, theirs, _ in self.pairs), default=0.0)
        bound = self.tolerance * most if real else self.tolerance
        for mine, theirs, undecided in self.pairs:
            a, b = (
                x.astype(np.float64)
                if real
                else x.astype(object if x.dtype.kind == "u" and x.itemsize == 8 else np.int64)
                for x in (mine, theirs)
            )
            distance, unlike = _distance(a, b)
            beyond = unlike | (distance > bound)
            loose = np.zeros(beyond.shape, bool) if undecided is None else undecided.reshape(beyond.shape)
            elements, differing = elements + a.size, differing + int(np.count_nonzero(unlike | (distance != 0)))
            wrong, free = wrong + int(np.count_nonzero(beyond & ~loose)), free + int(np.count_nonzero(beyond & loose))
            largest = max(largest, float(distance.max(initial=0.0)))
            x, y = (np.nan_to_num(v.astype(np.float64).reshape(-1), posinf=0.0, neginf=0.0) for v in (a, b))
            dot, mine_length, their_length = dot + float(x @ y), mine_length + float(x @ x), their_length + float(y @ y)
            if mine.ndim and mine.shape[-1] > 1:
                tops = [v.reshape(-1, mine.shape[-1]).argmax(axis=1) for v in (mine, theirs)]
                rows, same = rows + len(tops[0]), same + int(np.count_nonzero(tops[0] == tops[1]))
        lengths = (mine_length * their_length) ** 0.5
        return Agreement(
            self.tensor,
            self.dtype,
            self.layer,
            self.op,
            elements,
            differing,
            wrong,
            free,
            largest,
            largest / most if real and most else 0.0,
            dot / lengths if lengths else None,
            same / rows if rows else None,
            self.tolerance,
        )


def _largest(x: Array) -> float:
    if x.dtype.kind in "biu":
        return float(max((abs(int(x.max())), abs(int(x.min()))), default=0)) if x.size else 0.0
    wide = np.abs(x.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def _distance(a: Array, b: Array) -> tuple[Array, Array]:
    """How far elements are apart (0 where one is not finite), and where NaN or an infinity meets something else."""
    if a.dtype.kind != "f":
        return np.abs((a - b).astype(np.float64)), np.zeros(a.shape, bool)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        distance = np.where(finite, np.abs(a - b), 0.0)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    return distance, ~finite & ~alike


# ---- A compiled network against the framework that made it: the same inputs, outputs and layers compared.

_MOVED = (".moved", ".nhwc")
"""What ends the names of values whose axes the compiler put in another order."""
_MOST_AXES = 5


@frozen
class Comparison:
    """A network and its framework on ``samples`` sets of inputs.

    ``outputs`` decide whether both agree; ``layers`` are the results of kernels that carry a value's name of the model, in the
    order of execution, and tell where a difference begins. ``uncompared``: outputs that the framework does not give.
    """

    reference: str
    version: str
    samples: int
    outputs: tuple[Agreement, ...]
    layers: tuple[Agreement, ...]
    uncompared: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether no element of an output is beyond the tolerance."""
        return all(output.agrees for output in self.outputs)

    @property
    def identical(self) -> bool:
        return all(not output.differing for output in self.outputs)

    @property
    def first(self) -> Agreement | None:
        """The first layer beyond the tolerance; None where there is none, or where no names meet."""
        return next((layer for layer in self.layers if not layer.agrees), None)

    def __repr__(self) -> str:
        found = "identical" if self.identical else "agrees" if self.agrees else "differs"
        return f"<Comparison with {self.reference} {self.version}: {found}, {self.samples} samples>"

    def _repr_html_(self) -> str:
        rows = [
            (each.tensor, f"{each.wrong:,} of {each.elements:,} elements are off, by {each.largest:.6g} at most")
            for each in self.outputs
        ]
        return table(f"{self.reference} {self.version}, {self.samples} samples", rows)

    def error(self, where: str, hint: str = "", details: Mapping[str, Any] | None = None) -> VerificationError:
        """The refusal that says which output differs, by how much, and from which layer on."""
        worst = max((o for o in self.outputs if not o.agrees), key=lambda o: o.wrong / max(o.elements, 1))
        unit = f"{worst.largest:.6g}" if dtypes.is_float(worst.dtype) else f"{worst.largest:.0f} quanta"
        begin = f"; the first layer that differs is {self.first.layer} ({self.first.tensor})" if self.first else ""
        return VerificationError(
            f"the compiled network differs from {self.reference} {self.version}: {worst.wrong} of {worst.elements} elements of "
            f"{worst.tensor} are off, by {unit} at most{begin}",
            where=where,
            hint=hint,
            details=details,
        )


def compared(
    library: Library,
    reference: Reference,
    inputs: Sequence[Sequence[Array]],
    *,
    tolerance: float | None = None,
    quanta: int = 0,
    names: Sequence[str] = (),
    layers: bool = True,
    called: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run both on sets of inputs; state is reset once and lives from set to set.

    ``tolerance``: for floats, relative to the largest magnitude of a tensor; None: :data:`TOLERANCES`. ``quanta``: what integers
    may differ by. ``names``: the values of the model that are the network's outputs, where these were cut out of it.
    ``called``: the network's values by the framework's names for them; None: both call them alike.

    UsageError where the framework does not take the inputs, or gives no such values.
    """
    library.reset()
    reference.reset()
    kernels = library.manifest["kernels"] if layers else []
    tallies: dict[str, Tally] = {}

    def tally_of(tensor: Mapping[str, Any], layer: str = "", op: str = "") -> Tally:
        dtype = tensor["dtype"]
        bound = quanta if not dtypes.is_float(dtype) else TOLERANCES[dtype] if tolerance is None else tolerance
        return Tally(tensor["label"] or tensor["name"], dtype, bound, layer, op)

    outputs = [tally_of(tensor) for tensor in library.outputs]
    given = 0
    for number, arrays in enumerate(inputs):
        if progress is not None:
            progress(f"sample {number + 1}: {reference.name}", number, len(inputs))
        answer = _answered(reference, arrays)
        shown = answer.tensors if called is None else {called[n]: t for n, t in answer.tensors.items() if n in called}
        for position, array in enumerate(arrays):
            library.set_input(position, array)
        if layers:
            for k, kernel in enumerate(kernels):
                library.run_kernel(k)
                _add_layers(library, kernel, shown, tallies, tally_of)
        else:
            library.run()
        theirs = _outputs(answer, names, len(outputs))
        given = len(theirs)
        for k, (tally, array) in enumerate(zip(outputs, theirs, strict=False)):
            mine = library.get_output(k)
            tally.add(
                mine, _shaped(array, mine, tally.tensor, reference), answer.undecided.get(k) if not names else None
            )
    return Comparison(
        reference.name,
        reference.version,
        len(inputs),
        tuple(tally.agreement() for tally in outputs[:given]),
        tuple(tally.agreement() for tally in tallies.values()),
        tuple(tally.tensor for tally in outputs[given:]),
    )


def _answered(reference: Reference, arrays: Sequence[Array]) -> Answer:
    try:
        return reference.run(arrays)
    except RuntimeRefusal as error:
        raise UsageError(
            f"{reference.name} does not take these inputs: {error}",
            hint="give inputs that it takes: --data, --input",
        ) from error


def _outputs(answer: Answer, names: Sequence[str], count: int) -> Sequence[Array]:
    """The framework's values for the network's outputs; fewer where it gives fewer."""
    if not names:
        return answer.outputs[:count]
    missing = [name for name in names if name not in answer.tensors]
    if missing:
        raise UsageError(f"the framework does not show {missing[0]!r}", hint="compare the whole network")
    return [answer.tensors[name] for name in names]


def _shaped(theirs: Array, mine: Array, name: str, reference: Reference) -> Array:
    """The framework's output in the network's shape."""
    if theirs.size != mine.size:
        raise VerificationError(f"output {name} has shape {mine.shape}, that of {reference.name} {theirs.shape}")
    return np.asarray(theirs).reshape(mine.shape)


def _add_layers(
    library: Library,
    kernel: Mapping[str, Any],
    shown: Mapping[str, Array],
    tallies: dict[str, Tally],
    tally_of: Callable[[Mapping[str, Any], str, str], Tally],
) -> None:
    """What a kernel wrote, right then: a later one may use the memory again."""
    known = {tensor["name"]: tensor for tensor in library.manifest["tensors"]}
    for name in kernel["outputs"]:
        tensor = known[name]
        label, moved = _bare(tensor["label"])
        theirs = shown.get(label)
        if theirs is None:
            continue
        mine = library.tensor(name)
        fitting = _in_shape(theirs, mine, moved)
        if fitting is None or (fitting.dtype.kind == "f") != (mine.dtype.kind not in "biu"):
            continue
        if name not in tallies:
            tallies[name] = tally_of({**tensor, "label": label}, kernel["layer"], kernel["op"])
        tallies[name].add(mine, fitting)


def _bare(label: str) -> tuple[str, bool]:
    """The model's name of a value, and whether its axes were moved."""
    moved = False
    while label.endswith(_MOVED):
        label, moved = label.rpartition(".")[0], True
    return label, moved


def _in_shape(theirs: Array, mine: Array, moved: bool) -> Array | None:
    """The framework's tensor in the order of axes that the kernel's has: of several that fit, the nearest. None: no order."""
    if not moved:
        return theirs.reshape(mine.shape) if theirs.size == mine.size else None
    if theirs.ndim != mine.ndim or theirs.ndim > _MOST_AXES:
        return None
    found = list(_orders(theirs, mine.shape))
    return min(found, key=lambda x: float(np.nansum(np.abs(x.astype(np.float64) - mine))), default=None)


def _orders(theirs: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    for axes in permutations(range(theirs.ndim)):
        if tuple(theirs.shape[axis] for axis in axes) == shape:
            yield theirs.transpose(axes)
