# SPDX-License-Identifier: Apache-2.0
"""Run functions as OpenCL kernels on a device of this computer, through PyOpenCL and the device's driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.codegen.opencl import DeviceKernel, print_opencl_kernel
from microc.codegen.render import format_signature
from microc.compiler.single_function import make_boundary_graph
from microc.compiler.sizes.run_shapes import as_array
from microc.document.blocks import Document, document, facts
from microc.document.notebook import Showable
from microc.errors import ToolError, UsageError
from microc.run.desktop.library import TimingResult, time_runs
from microc.schedule.schedule import Schedule

_DRIVERS = "install a driver: the vendor's, or one for the processor (apt install pocl-opencl-icd)"


class OpenCLFunction(Showable):
    """A function that runs as an OpenCL kernel.

    ``source``: its OpenCL C. ``groups``: number of work-groups along x, y and z. ``items``: number of work-items of
    each group along x, y and z.

    Call it with numpy arrays in the order of its inputs. It returns an array, or a tuple if there are several outputs.
    The first call needs PyOpenCL and a driver. Raises ToolError if they are missing or the driver rejects the
    kernel."""

    def __init__(self, schedule: Schedule, constants: Mapping[str, Any]) -> None:
        ends = make_boundary_graph(schedule, constants)
        self._kernel: DeviceKernel = print_opencl_kernel(schedule.func)
        self._name, self._params = schedule.func.name, schedule.func.params
        self._constants = ends.consts
        self.inputs, self.outputs = ends.inputs, ends.outputs

    @property
    def source(self) -> str:
        return self._kernel.source

    @property
    def groups(self) -> tuple[int, int, int]:
        return self._kernel.groups

    @property
    def items(self) -> tuple[int, int, int]:
        return self._kernel.items

    @property
    def device(self) -> str:
        """Name of the device that runs it."""
        return str(self._device.name)

    def __call__(self, *arrays: Any) -> Array | tuple[Array, ...]:
        memory = self._upload_parameters(arrays)
        self._launch_and_wait(memory)
        outputs = tuple(self._read_buffer(memory[name], name) for name in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def time_evaluator(self, *arrays: Any, number: int = 10, repeats: int = 5) -> TimingResult:
        """Time ``repeats`` measurements of ``number`` launches each, without the copies of arrays to and from the
        device.

        A launch ends when the kernel has ended."""
        memory = self._upload_parameters(arrays)
        return time_runs(lambda: self._launch_and_wait(memory), number, repeats)

    def __repr__(self) -> str:
        return f"<OpenCLFunction {self._function_signature()}, {self.groups} groups of {self.items}>"

    def document(self) -> Document:
        """Return the number of groups and items as a document, for a notebook."""
        rows = (("groups", " x ".join(map(str, self.groups))), ("items", " x ".join(map(str, self.items))))
        return document(facts(rows), title=self._function_signature())

    def _function_signature(self) -> str:
        """Return the function's name with the names, dtypes and shapes of its inputs and outputs, as text."""
        tensors = {p.name: {"name": p.name, "dtype": p.dtype, "shape": p.shape} for p in self._params}
        inputs, outputs = ([tensors[name] for name in names] for names in (self.inputs, self.outputs))
        return format_signature(self._name, inputs, outputs)

    def _upload_parameters(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Copy the arrays of a call and the constants to buffers on the device; return the buffers by parameter name.

        Buffers of outputs start as zeros."""
        if len(arrays) != len(self.inputs):
            raise UsageError(
                f"{self._name}: got {len(arrays)} arrays, expected {len(self.inputs)}, one for each input",
                hint=f"give {', '.join(self.inputs)}",
            )
        arrays_by_name = {name: as_array(f"input {name!r}", a) for name, a in zip(self.inputs, arrays, strict=True)}
        cl, memory = _import_pyopencl(), {}
        for param in self._params:
            array = self._constants.get(param.name, arrays_by_name.get(param.name))
            if array is None:
                array = np.zeros(param.shape, dtypes.to_numpy(param.dtype))
            if (array.shape, str(array.dtype)) != (param.shape, param.dtype):
                raise UsageError(
                    f"{param.name!r}: got {array.dtype}{list(array.shape)}, expected {param.dtype}{list(param.shape)}",
                    hint="convert the array",
                )
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            memory[param.name] = cl.Buffer(self._context, flags, hostbuf=np.ascontiguousarray(array))
        return memory

    def _launch_and_wait(self, memory: Mapping[str, Any]) -> None:
        """Launch the kernel on buffers on the device, and wait for its end."""
        total = tuple(groups * items for groups, items in zip(self.groups, self.items, strict=True))
        self._program_kernel(self._queue, total, self.items, *(memory[p.name] for p in self._params)).wait()

    def _read_buffer(self, buffer: Any, name: str) -> Array:
        """Copy the buffer of parameter ``name`` from the device to a new array."""
        param = next(p for p in self._params if p.name == name)
        array = np.empty(param.shape, dtypes.to_numpy(param.dtype))
        _import_pyopencl().enqueue_copy(self._queue, array, buffer)
        return array

    @cached_property
    def _device(self) -> Any:
        cl = _import_pyopencl()
        try:
            return next(d for platform in cl.get_platforms() for d in platform.get_devices())
        except (cl.Error, StopIteration) as error:
            raise ToolError(
                "OpenCL found no device: no driver is installed", where="target opencl", hint=_DRIVERS
            ) from error

    @cached_property
    def _context(self) -> Any:
        return _import_pyopencl().Context([self._device])

    @cached_property
    def _queue(self) -> Any:
        return _import_pyopencl().CommandQueue(self._context)

    @cached_property
    def _program_kernel(self) -> Any:
        cl = _import_pyopencl()
        try:
            return cl.Kernel(cl.Program(self._context, self.source).build(), self._kernel.name)
        except cl.Error as error:
            messages = [line for line in str(error).splitlines() if "error:" in line] or [str(error)]
            raise ToolError(
                f"the OpenCL driver rejects the kernel of {self._name}: {messages[0].strip()}",
                where=self.device,
                hint="schedule smaller work-groups, or less shared memory",
            ) from error


def _import_pyopencl() -> Any:
    """Import PyOpenCL; raise ToolError if it is missing."""
    try:
        import pyopencl
    except ImportError as error:
        raise ToolError(
            "PyOpenCL is not installed", where="target opencl", hint="install it: pip install microc[opencl]"
        ) from error
    return pyopencl
