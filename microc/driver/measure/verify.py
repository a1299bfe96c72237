"""Board against host, kernel by kernel and bit by bit.

Two C libraries may round ``expf`` or ``tanhf`` differently in the last place. Float tensors are therefore allowed a tolerance,
relative to the largest magnitude in the tensor; where it was needed the host goes on with the board's values, so that every
kernel is judged by itself and no error adds up. Integers must agree in every bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microc import dtypes
from microc.driver import accepted
from microc.driver.desktop.library import Library
from microc.driver.measure.session import Device
from microc.driver.progress import Progress
from microc.driver.sizes.shapes import RunShapes
from microc.dtypes import Array
from microc.errors import UsageError, VerificationError
from microc.frozen import frozen

SEED = 20
TOLERANCE = 1e-6


@frozen
class LayerCheck:
    """What was compared after one kernel, over all samples. ``error``: the largest difference; 0 when all bits agree."""

    kernel: int
    layer: str
    op: str
    tensors: tuple[str, ...]
    elements: int
    error: float


@frozen
class Difference:
    """The first disagreement. ``index`` is a position in the tensor; ``count`` elements of it differ in ``sample``."""

    sample: int
    kernel: int
    layer: str
    op: str
    tensor: str
    index: tuple[int, ...]
    board: float | int | bool
    host: float | int | bool
    count: int
    elements: int

    def error(self, where: str, details: Mapping[str, Any] | None = None) -> VerificationError:
        """The refusal that reports it."""
        place = f"[{', '.join(map(str, self.index))}]"
        return VerificationError(
            f"board and host differ after kernel {self.kernel} ({self.op}): {self.tensor}{place} is {self.board} on the "
            f"board, {self.host} on the host; {self.count} of {self.elements} elements differ",
            where=f"{self.layer}, sample {self.sample}, {where}",
            hint="was the firmware built from this project, with another compiler or other flags?",
            details=details,
        )


def random_inputs(
    tensors: Sequence[dict[str, Any]], generator: np.random.Generator, shapes: RunShapes | None = None
) -> list[Array]:
    """One array for each input of a manifest: any integer of the dtype, standard normal floats.

    ``shapes``: the sizes of the run, where they vary; None: the largest.
    """
    return [_random(shapes.of(t) if shapes else t["shape"], t["dtype"], generator) for t in tensors]


def _random(shape: Sequence[int], dtype: str, generator: np.random.Generator) -> Array:
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtypes.is_float(dtype):
        return generator.standard_normal(shape).astype(dtypes.to_numpy(dtype))
    low, high = dtypes.int_range(dtype)
    return generator.integers(low, high, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)


def samples(device: Device, count: int, seed: int = SEED) -> list[list[Array]]:
    """``count`` sets of random inputs, the same for the same seed; where sizes vary, of the largest at first, then of any."""
    if count < 1:
        raise UsageError(f"cannot verify {count} samples", hint="--samples takes a number from 1 on")
    generator = np.random.default_rng(seed)
    found, shapes = [], RunShapes(device.project.manifest)
    for _ in range(count):
        found.append(random_inputs(device.inputs, generator, shapes))
        shapes.draw(generator)
    return found


def verify(
    device: Device,
    library: Library,
    inputs: Sequence[Sequence[Any]],
    progress: Progress | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[tuple[LayerCheck, ...], Difference | None]:
    """Run every kernel on both sides and compare what it wrote, right then, before a later kernel uses the memory again.

    ``inputs``: sets of arrays in the graph's order; state is reset once and lives from set to set. Stops at the first
    difference, with what was compared before it. ``tolerance`` is for floats, 0 demands equal bits; those of external code may
    differ by its backend's bound from ours.
    """
    tolerance = accepted.number("a tolerance", tolerance, 0, 1)
    device.reset()
    library.reset()
    kernels = device.kernels
    external = device.project.manifest.get("external", {}).get("kernels", ())
    bounds = {each["index"]: max(tolerance, each["bound"]) for each in external}
    elements, errors = [0] * len(kernels), [0.0] * len(kernels)
    for sample, arrays in enumerate(inputs):
        device.set_inputs(*arrays)
        for position, array in enumerate(arrays):
            library.set_input(position, array)
        for k, kernel in enumerate(kernels):
            if progress is not None:
                progress(
                    f"sample {sample + 1}: {kernel['layer']}", sample * len(kernels) + k, len(inputs) * len(kernels)
                )
            device.run_kernel(k)
            library.run_kernel(k)
            for name, own in zip(kernel["outputs"], library.manifest["kernels"][k]["outputs"], strict=True):
                board, host = device.read(name), library.tensor(own)
                comparison = compare(board, host, bounds.get(k, tolerance))
                if comparison.wrong:
                    checks = _checks(kernels, elements, errors)
                    return checks[: len(kernels) if sample else k], _difference(
                        sample, k, kernel, name, board, host, comparison
                    )
                if comparison.error:
                    library.set_tensor(own, board)
                elements[k] += board.size
                errors[k] = max(errors[k], comparison.error)
    return _checks(kernels, elements, errors), None


def _checks(
    kernels: Sequence[dict[str, Any]], elements: Sequence[int], errors: Sequence[float]
) -> tuple[LayerCheck, ...]:
    rows = enumerate(zip(kernels, elements, errors, strict=True))
    return tuple(LayerCheck(k, c["layer"], c["op"], tuple(c["outputs"]), n, e) for k, (c, n, e) in rows)


def _difference(
    sample: int, number: int, kernel: dict[str, Any], name: str, board: Array, host: Array, comparison: Comparison
) -> Difference:
    at = comparison.first
    index = tuple(int(i) for i in np.unravel_index(at, board.shape))
    values = board.reshape(-1)[at].item(), host.reshape(-1)[at].item()
    return Difference(sample, number, kernel["layer"], kernel["op"], name, index, *values, comparison.wrong, board.size)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many elements are wrong, the position of the first, and the largest tolerated difference."""

    wrong: int
    first: int
    error: float


def compare(board: Array, host: Array, tolerance: float) -> Comparison:
    """Compare arrays of one shape and dtype. NaN agrees with NaN of the same bits, or of any bits within a tolerance."""
    a, b = board.reshape(-1), host.reshape(-1)
    differs = (_bytes(a) != _bytes(b)).any(axis=1)
    error = 0.0
    if tolerance and differs.any() and a.dtype.kind == "f":
        finite = np.isfinite(a) & np.isfinite(b)
        x, y = (np.where(finite, v, 0).astype(np.float64) for v in (a, b))
        distance = np.abs(x - y)
        close = np.where(finite, distance <= tolerance * np.abs(y).max(), np.isnan(a) & np.isnan(b))
        error = float(distance[differs & close].max(initial=0.0))
        differs &= ~close
    wrong = np.flatnonzero(differs)
    return Comparison(len(wrong), int(wrong[0]) if len(wrong) else -1, error)


def _bytes(flat: Array) -> Array:
    return np.ascontiguousarray(flat).view(np.uint8).reshape(flat.size, flat.dtype.itemsize)
