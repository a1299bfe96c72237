"""A compiled network against the framework that made it: the same inputs, outputs and layers compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from microc import dtypes
from microc.driver.desktop.library import Library
from microc.driver.progress import Progress
from microc.driver.reference.measures import TOLERANCES, Agreement, Tally
from microc.driver.reference.runtime import Answer, Reference, RuntimeRefusal
from microc.driver.shown import table
from microc.dtypes import Array
from microc.errors import UsageError, VerificationError
from microc.frozen import frozen

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
