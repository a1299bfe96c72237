# SPDX-License-Identifier: Apache-2.0
"""``microc.fake_quantize``: what trains in PyTorch answers as the integer network that it becomes, bit by bit."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import MicrocError, ToolError, UnsupportedError, UsageError
from tests.support.onnx_session import session

DATA = Path(__file__).resolve().parents[1] / "data" / "quantize"


def torch_or_skip() -> Any:
    return pytest.importorskip("torch", reason="training is PyTorch's")


def noise(*shape: int) -> Array:
    return np.random.default_rng(0).random(shape, np.float32)


def steps(fake: Any, x: Array, count: int = 2) -> None:
    """Some steps of training towards nothing in particular."""
    torch = torch_or_skip()
    optimiser = torch.optim.SGD(fake.parameters(), 1e-2)
    for _ in range(count):
        optimiser.zero_grad()
        fake(torch.tensor(x)).square().mean().backward()
        optimiser.step()


def integers(fake: Any, x: Array) -> Array:
    network = microc.compile(fake.quantized().graph)
    return np.concatenate([np.asarray(network(row[None])) for row in x])


@pytest.mark.parametrize(
    ("name", "options"),
    [("transformer", {"weights": 4}), ("cnn", {"activations": "int16"}), ("dscnn", {"activations": "uint8", "weights": 2})],
)  # fmt: skip
def test_answers_as_the_integers(name: str, options: dict[str, Any]) -> None:
    torch = torch_or_skip()
    path = DATA / f"{name}.onnx"
    x = noise(6, *next(iter(microc.load(path).types.values())).shape[1:])
    fake = microc.fake_quantize(path, x, **options)
    steps(fake, x)
    assert all(parameter.grad.abs().sum() > 0 for parameter in fake.parameters())
    trained = fake(torch.tensor(x)).detach().numpy()
    assert np.array_equal(trained, integers(fake, x))
    with torch.no_grad():
        assert np.array_equal(trained, fake.eval()(torch.tensor(x)).numpy())


def residual(torch: Any) -> Any:
    """Batch normalisation, a depthwise layer, a sum, a concatenation, pools, a transposed convolution: random numbers."""
    nn = torch.nn

    class Residual(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1, stride=2), nn.BatchNorm2d(6), nn.ReLU6())
            self.second = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.BatchNorm2d(6))
            self.third = nn.ConvTranspose2d(6, 4, 2, stride=2)
            self.last = nn.Linear(30, 3)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            x = torch.relu(x + self.second(x))
            up = torch.sigmoid(self.third(x))
            pools = nn.functional.avg_pool2d(up, 4), nn.functional.max_pool2d(torch.tanh(up), 4)
            joined = torch.cat([*pools, x[:, :2, ::2, ::2]], 1)
            return self.last(joined.flatten(1)[:, :30])

    torch.manual_seed(0)
    return Residual()


def test_a_module() -> None:
    torch = torch_or_skip()
    x = noise(12, 2, 8, 8)
    fake = microc.fake_quantize(residual(torch), torch.tensor(x))
    before = fake.eval()(torch.tensor(x)).detach().numpy()
    assert np.array_equal(before, integers(fake, x))
    copied = copy.deepcopy(fake)
    steps(fake, x)
    assert np.array_equal(fake(torch.tensor(x)).detach().numpy(), integers(fake, x))
    assert np.array_equal(copied(torch.tensor(x)).detach().numpy(), before), "a copy has its own parameters"
    copied.load_state_dict(fake.state_dict())
    assert np.array_equal(integers(copied, x), integers(fake, x))


def test_starts_as_what_quantize_makes() -> None:
    torch = torch_or_skip()
    path, x = DATA / "cnn.onnx", noise(12, 1, 8, 8)
    network = microc.compile(microc.quantize(path, x, weights=4).graph)
    wanted = np.concatenate([np.asarray(network(row[None])) for row in x])
    assert np.array_equal(microc.fake_quantize(path, x, weights=4)(torch.tensor(x)).detach().numpy(), wanted)


def test_what_is_trained_is_saved_as_onnx(tmp_path: Path) -> None:
    torch_or_skip()
    x = noise(6, 1, 8, 8)
    fake = microc.fake_quantize(DATA / "cnn.onnx", x)
    steps(fake, x)
    runtime = session(fake.quantized().save(tmp_path / "trained.onnx"))
    found = np.concatenate([runtime.run(None, {runtime.get_inputs()[0].name: row[None]})[0] for row in x])
    wanted = integers(fake, x)
    step = np.diff(np.unique(wanted)).min()
    assert (np.abs(found - wanted) < 1.5 * step).all() and np.mean(np.abs(found - wanted) > step / 2) <= 0.01


def test_training_regains_what_rounding_lost() -> None:
    torch = torch_or_skip()
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn's digits")
    x, y = datasets.load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
    nn = torch.nn
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    module = nn.Sequential(*layers)

    def train(trained: Any, epochs: int) -> None:
        optimiser = torch.optim.Adam(trained.parameters(), 5e-3)
        for rows in [rows for _ in range(epochs) for rows in torch.randperm(1200).split(100)]:
            optimiser.zero_grad()
            nn.functional.cross_entropy(trained(x[rows]), y[rows]).backward()
            optimiser.step()

    def loss(judged: Callable[[Any], Any]) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(judged(x[:1200]), y[:1200]))

    train(module, 12)
    fake = microc.fake_quantize(module, x[:100], weights=2)
    real, rounded = loss(module), loss(fake)
    train(fake, 4)
    assert rounded > real and loss(fake) < 0.5 * (rounded + real)


def test_four_bits_are_trained() -> None:
    """The error of a regression falls, and what was trained is the integer network that is kept."""
    torch = torch_or_skip()
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(64, 16), torch.randn(64, 3)
    fake = microc.fake_quantize(module, x, weights=4)
    optimiser, errors = torch.optim.Adam(fake.parameters(), 1e-2), list[float]()
    for _ in range(25):
        optimiser.zero_grad()
        error = nn.functional.mse_loss(fake(x), y)
        error.backward()
        optimiser.step()
        errors.append(float(error))
    assert errors[-1] < 0.8 * errors[0]
    found = fake.quantized()
    assert all(np.abs(w.data).max() <= 7 for w in found.recipe.weights.values() if w.data.ndim == 2)
    wanted = np.concatenate([microc.compile(found.graph)(row[None].numpy()) for row in x[:8]])
    np.testing.assert_array_equal(fake(x[:8]).detach().numpy(), wanted)


def refused(given: Any, data: Any, kind: type[MicrocError]) -> str:
    with pytest.raises(kind) as caught:
        microc.fake_quantize(given, data)
    return str(caught.value)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = torch_or_skip()
    x = noise(6, 1, 8, 8)
    assert "no gradient is known" in refused(DATA / "lstm.onnx", noise(3, 8, 8), UnsupportedError)
    assert "samples along the first axis" in refused(torch.nn.Flatten(), iter([x]), UsageError)
    fake = microc.fake_quantize(DATA / "cnn.onnx", x)
    with pytest.raises(UsageError, match=r"got \(3, 8, 8\), expected a tensor \(samples, 1, 8, 8\)"):
        fake(torch.zeros(3, 8, 8))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "PyTorch" in refused(DATA / "cnn.onnx", x, ToolError)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert 'pip install "microc[torch]"' in refused(DATA / "cnn.onnx", noise(2, 1, 8, 8), ToolError)


@pytest.mark.parametrize(
    "option",
    [{"block": 32, "weights": 4}, {"weight_only": ["all"]}, {"dynamic_range": ["all"]}, {"scales": "power-of-two"}],
)
def test_integers_without_a_gradient_are_refused(option: dict[str, Any]) -> None:
    torch_or_skip()
    with pytest.raises(UsageError, match="training cannot simulate") as caught:
        microc.fake_quantize(DATA / "cnn.onnx", noise(4, 16, 16, 1), **option)
    assert caught.value.hint == f"leave out {next(iter(option))}"
