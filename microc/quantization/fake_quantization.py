"""``microc.fake_quantize``: quantisation-aware training in PyTorch."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.compiler.model import knows_plugins
from microc.errors import ToolError, UsageError
from microc.quantization import integer_scheme
from microc.quantization.quantization_steps import ANY, quantize

if TYPE_CHECKING:
    from microc.quantization.training import FakeQuantized


_NOT_TRAINED = MappingProxyType({"block": integer_scheme.NONE, "weight_only": (), "dynamic_range": (), "scales": ANY})
"""Options whose integers have no gradient here, with what they are unless given."""


@knows_plugins
def fake_quantize(model: Any, data: Any, **options: Any) -> FakeQuantized:
    """A ``torch.nn.Module`` that trains with the rounding of the integer network that it becomes.

    ``model``: a ``torch.nn.Module``, which is exported in eval mode; or anything that :func:`microc.quantize` takes, an ONNX
    file for instance: it is trained in PyTorch all the same. ``data``: typical inputs, a tensor or an array with the samples
    along the first axis (for several inputs a tuple of them), which the network is calibrated on. ``options``: those of
    :func:`microc.quantize` but block, weight_only, dynamic_range and scales.

    The module starts as what ``microc.quantize`` makes of the network. In training and in evaluation it answers as the
    integer network of its present weights, and ``quantized()`` gives that. ToolError without PyTorch; UnsupportedError for
    loops, state, and operators whose gradient is not known; else what :func:`microc.quantize` raises.
    """
    try:
        import torch
    except ImportError as error:
        raise ToolError("training needs PyTorch, which is not installed", hint="pip install microc[torch]") from error
    from microc.quantization.training import FakeQuantized

    for name, usual in _NOT_TRAINED.items():
        if options.get(name, usual) != usual:
            raise UsageError(
                f"training does not know the integers of {name}={options[name]!r}", hint=f"leave out {name}"
            )
    given = data if isinstance(data, tuple) else (data,)
    if isinstance(model, torch.nn.Module):
        if not all(hasattr(each, "shape") and len(each) for each in given):
            raise UsageError(
                "a module is exported with the data's first sample, and they are no arrays",
                hint="give a tensor with the samples along the first axis, for several inputs a tuple of tensors",
            )
        model = torch.export.export(model.eval(), tuple(torch.as_tensor(each[:1]) for each in given))
    arrays = tuple(each.detach().cpu().numpy() if isinstance(each, torch.Tensor) else each for each in given)
    return FakeQuantized(quantize(model, arrays if isinstance(data, tuple) else arrays[0], **options))
