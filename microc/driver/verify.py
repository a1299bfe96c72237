"""Board against host, kernel by kernel and bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microc import dtypes
from microc.driver.firmware import Device
from microc.driver.library import Library
from microc.dtypes import Array
from microc.errors import UsageError, VerificationError

SEED = 20
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class LayerCheck:
    """What was compared after one kernel, over all samples."""

    kernel: int
    layer: str
    op: str
    tensors: tuple[str, ...]
    elements: int


@dataclass(frozen=True, slots=True)
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

    def error(self, where: str) -> VerificationError:
        """The refusal that reports it."""
        place = f"[{', '.join(map(str, self.index))}]"
        return VerificationError(
            f"board and host differ after kernel {self.kernel} ({self.op}): {self.tensor}{place} is {self.board} on the "
            f"board, {self.host} on the host; {self.count} of {self.elements} elements differ",
            where=f"{self.layer}, sample {self.sample}, {where}",
            hint="was the firmware built from this project, with another compiler or other flags?",
        )


def random_inputs(tensors: Sequence[dict[str, Any]], generator: np.random.Generator) -> list[Array]:
    """One array for each input of a manifest: any integer of the dtype, standard normal floats."""
    return [_random(t["shape"], t["dtype"], generator) for t in tensors]


def _random(shape: Sequence[int], dtype: str, generator: np.random.Generator) -> Array:
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtypes.is_float(dtype):
        return generator.standard_normal(shape).astype(dtypes.to_numpy(dtype))
    low, high = dtypes.int_range(dtype)
    return generator.integers(low, high, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)


def samples(device: Device, count: int, seed: int = SEED) -> list[list[Array]]:
    """``count`` sets of random inputs, the same for the same seed."""
    if count < 1:
        raise UsageError(f"cannot verify {count} samples", hint="--samples takes a number from 1 on")
    generator = np.random.default_rng(seed)
    return [random_inputs(device.inputs, generator) for _ in range(count)]


def verify(
    device: Device, library: Library, inputs: Sequence[Sequence[Any]], progress: Progress | None = None
) -> tuple[tuple[LayerCheck, ...], Difference | None]:
    """Run every kernel on both sides and compare what it wrote, right then, before a later kernel uses the memory again.

    ``inputs``: sets of arrays in the graph's order; state is reset once and lives from set to set. Stops at the first
    difference. Two NaNs are equal only if their bits are.
    """
    device.reset()
    library.reset()
    kernels = device.kernels
    compared = [0] * len(kernels)
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
            for name in kernel["outputs"]:
                ours, theirs = device.read(name), library.tensor(name)
                compared[k] += ours.size
                found = _first(ours, theirs)
                if found is not None:
                    at, count = found
                    where = tuple(int(i) for i in np.unravel_index(at, ours.shape))
                    return (), Difference(
                        sample, k, kernel["layer"], kernel["op"], name, where,
                        ours.reshape(-1)[at].item(), theirs.reshape(-1)[at].item(), count, ours.size,
                    )  # fmt: skip
    return tuple(
        LayerCheck(k, kernel["layer"], kernel["op"], tuple(kernel["outputs"]), compared[k])
        for k, kernel in enumerate(kernels)
    ), None


def _first(ours: Array, theirs: Array) -> tuple[int, int] | None:
    """The first element whose bits differ, and how many do; None when all agree."""
    width = ours.dtype.itemsize
    a = np.ascontiguousarray(ours).reshape(-1).view(np.uint8).reshape(-1, width)
    b = np.ascontiguousarray(theirs).reshape(-1).view(np.uint8).reshape(-1, width)
    different = np.flatnonzero((a != b).any(axis=1))
    return (int(different[0]), len(different)) if len(different) else None
