# SPDX-License-Identifier: Apache-2.0
"""Compare board and host kernel by kernel and bit by bit.

Two C libraries may round ``expf`` or ``tanhf`` differently in the last place. Float tensors therefore have a tolerance,
relative to the largest magnitude in the tensor. After a tolerated difference the host continues with the board's values, so
that each kernel is judged by itself and errors do not accumulate. Integers must agree in every bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler import validation
from microc.compiler.interaction import Progress
from microc.errors import VerificationError
from microc.run.comparison import compare_bits
from microc.run.desktop.library import Library
from microc.run.engine import HostKernels, KernelEngine
from microc.run.session import Device

TOLERANCE = 1e-6
"""Tolerance of floats, relative to the largest magnitude of a tensor."""


@frozen
class LayerCheck:
    """Comparison of the outputs of one kernel on board and host, over all samples.

    ``error``: largest difference within the tolerance, 0 if all bits agree."""

    kernel: int
    layer: str
    op: str
    tensors: tuple[str, ...]
    elements: int
    error: float


@frozen
class Difference:
    """The first difference between board and host, at ``index`` of ``tensor``.

    ``count``: number of differing elements in this sample, of ``elements`` in the tensor."""

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
        """Return the error that reports this disagreement; ``where``: the board."""
        index_text = f"[{', '.join(map(str, self.index))}]"
        return VerificationError(
            f"board and host differ after kernel {self.kernel} ({self.op}): {self.tensor}{index_text} is {self.board} on the "
            f"board, {self.host} on the host; {self.count} of {self.elements} elements differ",
            where=f"{self.layer}, sample {self.sample}, {where}",
            hint="flash the firmware that was built from this project, with its compiler and flags",
            details=details,
        )


class BoardKernels(KernelEngine):
    """The kernels of a firmware, on a board."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.project.manifest)
        self.name, self.device = device.project.board.name, device

    def reset(self) -> None:
        self.device.reset()

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        self.device.set_inputs(*arrays)

    def run(self) -> None:
        self.device.client.run()

    def run_kernel(self, number: int) -> None:
        self.device.run_kernel(number)

    def read(self, name: str) -> Array:
        return self.device.read(name)


def compare_board_with_host(
    device: Device,
    library: Library,
    inputs: Sequence[Sequence[Any]],
    progress: Progress | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[tuple[LayerCheck, ...], Difference | None]:
    """Run every kernel on board and host, and compare its outputs immediately, before a later kernel reuses their
    memory.

    ``inputs``: sets of arrays in the graph's order; state is reset once and continues from set to set. The comparison
    stops at the first difference; it is returned together with the checks before it. ``tolerance``: tolerance of
    floats; 0 requires equal bits. Kernels with external code (a vendor library, for example) may differ by the bound
    that their backend states.
    """
    tolerance = validation.as_number("a tolerance", tolerance, 0, 1)
    board, host = BoardKernels(device), HostKernels(library)
    board.reset()
    host.reset()
    kernels = board.kernels
    external = board.manifest.get("external", {}).get("kernels", ())
    bounds = {entry["index"]: max(tolerance, entry["bound"]) for entry in external}
    elements, errors = [0] * len(kernels), [0.0] * len(kernels)
    for sample, arrays in enumerate(inputs):
        board.set_inputs(arrays)
        host.set_inputs(arrays)
        for k, kernel in enumerate(kernels):
            if progress is not None:
                progress(
                    f"sample {sample + 1}: {kernel['layer']}", sample * len(kernels) + k, len(inputs) * len(kernels)
                )
            board.run_kernel(k)
            host.run_kernel(k)
            for name, host_name in zip(kernel["outputs"], host.kernels[k]["outputs"], strict=True):
                ours, theirs = board.read(name), host.read(host_name)
                comparison = compare_bits(ours, theirs, bounds.get(k, tolerance))
                if comparison.wrong.any():
                    checks = _summarise_layer_checks(kernels, elements, errors)
                    difference = _describe_first_difference(sample, k, kernel, name, ours, theirs, comparison.wrong)
                    return checks[: len(kernels) if sample else k], difference
                if comparison.error:
                    library.set_tensor(host_name, ours)
                elements[k] += ours.size
                errors[k] = max(errors[k], comparison.error)
    return _summarise_layer_checks(kernels, elements, errors), None


def _summarise_layer_checks(
    kernels: Sequence[Mapping[str, Any]], elements: Sequence[int], errors: Sequence[float]
) -> tuple[LayerCheck, ...]:
    """Summarise the comparison of each kernel. ``elements``: compared elements by kernel; ``errors``: largest tolerated
    differences."""
    rows = enumerate(zip(kernels, elements, errors, strict=True))
    return tuple(LayerCheck(k, c["layer"], c["op"], tuple(c["outputs"]), n, e) for k, (c, n, e) in rows)


def _describe_first_difference(
    sample: int,
    kernel_number: int,
    kernel: Mapping[str, Any],
    tensor_name: str,
    board_array: Array,
    host_array: Array,
    wrong: Array,
) -> Difference:
    """Describe the first wrong element of a tensor that kernel ``kernel_number`` wrote. ``wrong``: mask."""
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return Difference(
        sample,
        kernel_number,
        kernel["layer"],
        kernel["op"],
        tensor_name,
        index,
        board_array[index].item(),
        host_array[index].item(),
        int(np.count_nonzero(wrong)),
        board_array.size,
    )
