# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch, exported on the way; without PyTorch, what objects that look like modules are told."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import microc
from microc.compiler.options import OPTIONS
from microc.errors import UnsupportedError, UsageError
from microc.frontend.torch.reader import is_module

BOUND = 1e-5


def network(torch: Any) -> Any:
    """A module that says another thing in training, with a second input that may be left out."""

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
            self.drop, self.dense = torch.nn.Dropout(), torch.nn.Linear(4, 2)
            self.norm.running_mean.uniform_(-1, 1)

        def forward(self, image: Any, extra: Any = None) -> Any:
            found = self.dense(self.drop(self.norm(self.conv(image)).mean((2, 3))))
            return found if extra is None else found + extra

    torch.manual_seed(0)
    return Net()


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")


def test_a_module_in_training_mode_is_compiled_as_in_evaluation(torch: Any) -> None:
    module, x = network(torch), torch.randn(1, 3, 8, 8)
    module.conv.eval()
    with pytest.warns(UserWarning, match="Net is in training mode") as warned:
        library = microc.compile(module, example_inputs=(x,))
    assert [w.filename for w in warned] == [__file__]
    assert module.training and module.norm.training and not module.conv.training
    np.testing.assert_allclose(library(image=x.numpy()), module.eval()(x).detach().numpy(), atol=BOUND)


def test_inputs_by_name_as_arrays_and_alone(torch: Any) -> None:
    module, x = network(torch).eval(), np.ones((1, 3, 8, 8), np.float32)
    two = {"image": x, "extra": torch.ones(1, 2)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libraries = [microc.compile(module, example_inputs=given) for given in (x, [x], two)]
    one, listed, named = (library(*[x, np.ones((1, 2), np.float32)][: len(library.inputs)]) for library in libraries)
    np.testing.assert_array_equal(one, listed)
    np.testing.assert_allclose(named, np.asarray(one) + 1, atol=BOUND)
    assert microc.verify(module, example_inputs=x).agrees
    assert microc.load(module, example_inputs=x).inputs == ("image",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"example_inputs": "text"}, "example_inputs: got str, expected a tensor or an array"),
        ({"example_inputs": np.ones((1, 4, 8, 8), np.float32)}, "expected input"),
        ({"example_inputs": {"img": np.ones((1, 3, 8, 8), np.float32)}}, "does not export"),
        ({}, "example_inputs: got none"),
        (
            {"example_inputs": np.ones((1, 3, 8, 8), np.float32), "input_shapes": {"x": (1, 2)}},
            "example_inputs define the shapes",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inputs_that_do_not_fit(torch: Any, given: dict[str, Any], said: str) -> None:
    module = network(torch).eval()
    with pytest.raises((UsageError, UnsupportedError), match=said):
        microc.compile(module, **given)
    scripted = torch.jit.trace(module, torch.zeros(1, 3, 8, 8))
    with pytest.raises(UsageError, match="TorchScript"):
        microc.compile(scripted, example_inputs=torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "Linear"])
def test_packed_modules_of_eager_quantisation_are_refused(torch: Any, kind: str) -> None:
    layer = getattr(torch.nn, kind)(4, 3)
    packed = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(layer), {type(layer)}, dtype=torch.qint8)
    with pytest.raises(UnsupportedError, match=rf"(?s)0: got torch.ao.nn.quantized.dynamic.*{kind}.*dynamic_range"):
        microc.compile(packed, example_inputs=(torch.zeros(2, 1, 4),))


def test_float_functional_is_exported(torch: Any) -> None:
    """A float module that is prepared for eager quantisation: its sums are modules of torch.ao.nn.quantized."""

    class Residual(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.sum = torch.nn.Linear(4, 4), torch.ao.nn.quantized.FloatFunctional()

        def forward(self, x: Any) -> Any:
            return self.sum.add(self.layer(x), x)

    module, x = Residual().eval(), torch.linspace(-1, 1, 8).reshape(2, 4)
    found = microc.compile(module, example_inputs=(x,))(x.numpy())
    np.testing.assert_allclose(found, module(x).detach().numpy(), atol=BOUND)


def test_without_pytorch() -> None:
    """Classes tell; nothing is imported for that."""
    looks = type("Net", (), {"__module__": "torch.nn", "forward": None, "state_dict": None})()
    assert is_module(looks) and not is_module(object())
    with pytest.raises(UsageError, match="example_inputs: got none") as caught:
        microc.compile(looks)
    assert "example_inputs=(" in caught.value.hint
    with pytest.raises(UsageError, match=r"got a model of type str, expected a torch\.nn\.Module"):
        microc.compile("model.tflite", example_inputs=(1,))
    assert not OPTIONS["example_inputs"].flag
