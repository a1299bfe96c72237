"""PyTorch programs in PyTorch, node by node of the program as the reader decomposes it."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from microc.driver.reference.runtime import Answer, RuntimeRefusal, flat, imported
from microc.dtypes import Array
from microc.errors import ToolError
from microc.frontend.torch import reader as torch_export
from microc.frontend.torch.archive import harmless


class TorchProgram:
    """An ``ExportedProgram``. Its outputs are those of the program itself; decomposed, as it is read, it shows values inside."""

    name = "torch"

    def __init__(self, program: Any, file: str, inside: bool = True) -> None:
        self._torch = imported("torch", "PyTorch", "pip install microc[torch]")
        self.version = str(self._torch.__version__)
        try:
            self._module = program.module()
            self._inside = torch_export.decomposed(program, file).module() if inside else None
        except Exception as error:
            raise ToolError(f"PyTorch does not run the program: {error}", where=file) from error

    def run(self, arrays: Sequence[Array]) -> Answer:
        torch = self._torch
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        seen: dict[str, Any] = {}
        try:
            with torch.no_grad():
                found = self._module(*tensors)
                if self._inside is not None:
                    _recorder(torch, self._inside, seen).run(*tensors)
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        outputs = tuple(_array(torch, value) for value in flat(found) if value is not None)
        return Answer(outputs, {name: _array(torch, value) for name, value in seen.items()})

    def reset(self) -> None:
        """Programs that change their buffers are refused when they are read."""


def loaded(data: bytes, file: str) -> TorchProgram:
    """The program of a ``.pt2`` file, from the harmless archive that the reader makes of it: nothing is unpickled."""
    torch = imported("torch", "PyTorch", "pip install microc[torch]")
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # the operators that quantised programs use
    checked = harmless(data, file)
    try:
        program = torch.export.load(io.BytesIO(checked))
    except Exception as error:
        raise ToolError(f"PyTorch does not load the program: {error}", where=file) from error
    return TorchProgram(program, file)


def _recorder(torch: Any, module: Any, seen: dict[str, Any]) -> Any:
    """PyTorch's interpreter of graphs, which remembers the tensor of every node."""

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            value = super().run_node(node)
            if isinstance(value, torch.Tensor):
                seen[node.name] = value
            return value

    return Recorder(module)


def _array(torch: Any, value: Any) -> Array:
    """A tensor as an array; bfloat16, which numpy lacks, by way of float32, which holds it."""
    tensor = torch.as_tensor(value).detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.contiguous().numpy())
