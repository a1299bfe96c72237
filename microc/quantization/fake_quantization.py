# SPDX-License-Identifier: Apache-2.0
"""Quantisation-aware training in PyTorch: ``microc.fake_quantize``."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.compiler.model import registers_plugins
from microc.errors import ToolError, UsageError
from microc.quantization import integer_scheme
from microc.quantization.quantization_steps import ANY, quantize

if TYPE_CHECKING:
    from microc.quantization.training import FakeQuantized


_NOT_TRAINED = MappingProxyType({"block": integer_scheme.NONE, "weight_only": (), "dynamic_range": (), "scales": ANY})
"""Options of :func:`microc.quantize` that training cannot simulate, with their defaults, which are the only permitted values."""


@registers_plugins
def fake_quantize(model: Any, data: Any, **options: Any) -> FakeQuantized:
    """Return a ``torch.nn.Module`` for quantisation-aware training of a network.

    ``model``: a ``torch.nn.Module``, which is exported in eval mode, or anything else that :func:`microc.quantize` accepts, such
    as an ONNX file, which is then trained in PyTorch as well. ``data``: typical inputs for calibration, as a tensor or an array
    with the samples along the first axis; for several inputs a tuple of tensors or arrays. ``options``: options of
    :func:`microc.quantize` except block, weight_only, dynamic_range and scales.

    The module starts as the integer network that ``microc.quantize`` returns. In training and in evaluation it computes the
    outputs of the integer network that its present weights are quantised to; ``quantized()`` returns this network. Raises
    ToolError without PyTorch, UnsupportedError for loops, state and operators without a known gradient, and otherwise the errors
    of :func:`microc.quantize`.
    """
    try:
        import torch
    except ImportError as error:
        raise ToolError(
            "training needs PyTorch, which is not installed", hint="install it: pip install microc[torch]"
        ) from error
    from microc.quantization.training import FakeQuantized

    for name, default in _NOT_TRAINED.items():
        if options.get(name, default) != default:
            raise UsageError(
                f"{name}: training cannot simulate {options[name]!r}, expected {default!r}", hint=f"leave out {name}"
            )
    inputs = data if isinstance(data, tuple) else (data,)
    if isinstance(model, torch.nn.Module):
        if not all(hasattr(array, "shape") and len(array) for array in inputs):
            raise UsageError(
                "data: expected arrays with one sample at least, since a module is exported with the first one; "
                f"got {', '.join(type(array).__name__ for array in inputs)}",
                hint="give a tensor with the samples along the first axis, for several inputs a tuple of tensors",
            )
        model = torch.export.export(model.eval(), tuple(torch.as_tensor(array[:1]) for array in inputs))
    arrays = tuple(array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array for array in inputs)
    return FakeQuantized(quantize(model, arrays if isinstance(data, tuple) else arrays[0], **options))
