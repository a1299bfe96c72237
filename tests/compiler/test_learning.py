# SPDX-License-Identifier: Apache-2.0
"""Networks that learn: steps beside numpy's, on this computer, in plain C and on an emulated board."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.base.file_access import runtime_c_folder
from microc.codegen.c.source import network_files
from microc.compiler.learning_head import load_head
from microc.errors import OutputError, UnsupportedError, UsageError
from microc.graph import ir
from microc.graph.ir import Graph
from microc.ops.meaning import reference_node_function
from tests.device.smoke import needs
from tests.support import digits
from tests.support.native import WARNINGS

RNG = np.random.default_rng(2)
STEPS, RATE = 10, 0.1
ROUNDINGS = 64 * 2.0**-24
"""Bound of ten steps: each value is made of some dozen float32 operations on numbers near 1, each rounded by 2**-24 at most."""


def two_layers(classes: int = 3) -> Graph:
    """Two dense layers with a relu between, and a softmax."""
    net = microc.GraphBuilder()

    def draw(*shape: int) -> Array:
        return np.asarray(RNG.normal(size=shape) * 0.5, np.float32)

    x = net.input("x", (1, 5))
    h = net.op("dense", x, net.constant("w1", draw(4, 5)), net.constant("b1", draw(4)), activation="relu")
    y = net.op("dense", h, net.constant("w2", draw(classes, 4)), net.constant("b2", draw(classes)))
    return net.graph("two", {"y": net.op("softmax", y)})


class Reference:
    """The steps of the last layers in float64: softmax with cross entropy, and an optimiser in PyTorch's form."""

    def __init__(self, graph: Graph, layers: int, optimiser: str, accumulate: int = 1) -> None:
        self.w = {name: graph.consts[name].astype(np.float64) for name in ("w1", "b1", "w2", "b2")}
        self.learned = ("w1", "b1", "w2", "b2")[4 - 2 * layers :]
        self.optimiser, self.accumulate, self.count = optimiser, accumulate, 0
        self.total = {name: np.zeros_like(self.w[name]) for name in self.learned}
        self.first = {name: np.zeros_like(self.w[name]) for name in self.learned}
        self.second = {name: np.zeros_like(self.w[name]) for name in self.learned}
        self.steps = 0

    def step(self, x: Array, label: int, rate: float) -> float:
        hidden = np.maximum(x.astype(np.float64) @ self.w["w1"].T + self.w["b1"], 0)
        logits = hidden @ self.w["w2"].T + self.w["b2"]
        powers = np.exp(logits - logits.max())
        probabilities = powers / powers.sum()
        loss = -np.log(probabilities[0, label])
        g = probabilities.copy()
        g[0, label] -= 1
        back = (g @ self.w["w2"]) * (hidden > 0)
        gradients = {"w2": g.T @ hidden, "b2": g[0], "w1": back.T @ x.astype(np.float64), "b1": back[0]}
        self.count += 1
        for name in self.learned:
            self.total[name] += gradients[name]
        if self.count % self.accumulate == 0:
            self.steps += 1
            for name in self.learned:
                self.w[name] = self.w[name] - rate * self._direction(name, self.total[name] / self.accumulate)
                self.total[name][:] = 0
        return float(loss)

    def _direction(self, name: str, g: Array) -> Array:
        if self.optimiser == "sgd":
            return g
        if self.optimiser == "momentum":
            self.first[name] = 0.9 * self.first[name] + g
            return self.first[name]
        self.first[name] = 0.9 * self.first[name] + 0.1 * g
        self.second[name] = 0.999 * self.second[name] + 0.001 * g * g
        mean, square = self.first[name] / (1 - 0.9**self.steps), self.second[name] / (1 - 0.999**self.steps)
        return np.asarray(mean / (np.sqrt(square) + 1e-8))


def samples(count: int, classes: int = 3) -> list[tuple[Array, int]]:
    return [(RNG.normal(size=(1, 5)).astype(np.float32), int(RNG.integers(classes))) for _ in range(count)]


def run_in_numpy(graph: Graph, inputs: list[dict[str, Array]]) -> tuple[list[Array], dict[str, Array]]:
    """The loss of every run, and the states after the last."""
    state: dict[str, Array] = dict(graph.state)
    losses = []
    for given in inputs:
        values = ir.run(graph, given, reference_node_function(graph), state)
        losses.append(values["loss"])
        state = {name: values[value] for name, value in graph.updates.items()}
    return losses, state


@pytest.mark.parametrize(
    ("layers", "optimiser", "accumulate"),
    [(1, "sgd", 1), (2, "sgd", 1), (1, "momentum", 1), (2, "momentum", 3), (2, "adam", 2)],
)
def test_steps_are_those_of_the_formulas(layers: int, optimiser: str, accumulate: int) -> None:
    graph = two_layers()
    trained = microc.learn(graph, {"layers": layers, "optimiser": optimiser, "accumulate": accumulate})
    assert trained.inputs == ("x", "labels", "rate") and trained.outputs == ("y", "loss")
    reference, rate = Reference(graph, layers, optimiser, accumulate), 0.01 if optimiser == "adam" else RATE
    seen = samples(STEPS)
    expected = [reference.step(x, label, rate) for x, label in seen]
    given = [{"x": x, "labels": np.array([label], np.int32), "rate": np.float32(rate)} for x, label in seen]
    losses, state = run_in_numpy(trained, [{k: np.asarray(v) for k, v in inputs.items()} for inputs in given])
    # Adam divides by the root of tiny squares, which multiplies relative errors of gradients.
    np.testing.assert_allclose(losses, expected, atol=ROUNDINGS * (50 if optimiser == "adam" else 1))
    for name in reference.learned:
        np.testing.assert_allclose(state[name], reference.w[name], atol=ROUNDINGS * (50 if optimiser == "adam" else 1))


def test_compiled_steps_are_those_of_the_formulas_and_a_rate_of_zero_learns_nothing() -> None:
    graph = two_layers()
    library = microc.compile(graph, learn={"layers": 2, "optimiser": "momentum"})
    reference, seen = Reference(graph, 2, "momentum"), samples(STEPS)
    for x, label in seen:
        _, loss = library(x, np.array([label], np.int32), np.float32(RATE))
        assert float(loss) == pytest.approx(reference.step(x, label, RATE), abs=ROUNDINGS)
    x, label = seen[0]
    first, second = (library(x, np.array([label], np.int32), np.float32(0)) for _ in range(2))
    assert first[1] == second[1] and np.array_equal(first[0], second[0])


MAIN = """
#include "model.h"
#include "microc_port.h"
#include "microc_store.h"
#include <string.h>
int microc_port_write(const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    return 0;
}
static uint8_t banks[2][4096];
int microc_port_bank_read(uint32_t bank, uint32_t offset, uint8_t *data, uint32_t size)
{
    (void)memcpy(data, banks[bank] + offset, size);
    return 0;
}
int microc_port_bank_write(uint32_t bank, uint32_t offset, const uint8_t *data, uint32_t size)
{
    if (data == NULL) {
        (void)memset(banks[bank] + offset, 0xFF, size);
    } else {
        (void)memcpy(banks[bank] + offset, data, size);
    }
    return 0;
}
static uint64_t memory[(TWO_ARENA_SIZE + 7) / 8 + 1];
int learn(const float *x, const int32_t *labels, const float *rate, float *y, float *loss);
int run(const float *x, float *y);
int learn(const float *x, const int32_t *labels, const float *rate, float *y, float *loss)
{
    const struct two_inputs inputs = { .x = x, .labels = labels, .rate = rate };
    const struct two_outputs outputs = { .y = y, .loss = loss };
    return two_learn(memory, &inputs, &outputs);
}
int run(const float *x, float *y)
{
    const struct two_inputs inputs = { .x = x, .labels = NULL, .rate = NULL };
    const struct two_outputs outputs = { .y = y, .loss = NULL };
    return two_run(memory, &inputs, &outputs);
}
void reset(void);
void reset(void)
{
    two_reset(memory);
}
int keep(int restores);
int keep(int restores)
{
    struct microc_piece pieces[TWO_LEARNED_COUNT];
    for (uint32_t k = 0; k < TWO_LEARNED_COUNT; k++) {
        pieces[k].data = two_learned(memory, k, &pieces[k].size);
    }
    return restores ? microc_store_restore(7, pieces, TWO_LEARNED_COUNT) : microc_store_save(7, pieces, TWO_LEARNED_COUNT);
}
"""


@pytest.mark.parametrize("io_in_arena", [False, True])
def test_run_infers_and_learn_learns(tmp_path: Path, io_in_arena: bool) -> None:
    """In plain C, without a warning: `run` needs neither labels nor rate and changes nothing; `learn` is a step."""
    graph = two_layers()
    module = microc.compile(graph, board="host", learn={"layers": 2}, io_in_arena=io_in_arena).module
    assert 0 < module.inference_calls < len(module.calls)
    for name, text in network_files(module, "0").items():
        (tmp_path / name).write_text(text)
    (tmp_path / "main.c").write_text("#include <stddef.h>\n" + MAIN)
    runtime = runtime_c_folder()
    sources = ("main.c", "model.c", "model_data.c", f"{runtime}/src/microc_store.c", f"{runtime}/src/microc_frame.c")
    argv = [
        "gcc",
        *WARNINGS,
        "-O1",
        "-shared",
        "-fPIC",
        f"-I{runtime}/include",
        "-DMICROC_PORT_TICK_HZ=1000u",
        "-o",
        "net.so",
        *sources,
        "-lm",
    ]
    subprocess.run(argv, cwd=tmp_path, check=True)
    net = ctypes.CDLL(str(tmp_path / "net.so"))
    reference = Reference(graph, 2, "sgd")
    y, loss = np.zeros(3, np.float32), np.zeros(1, np.float32)

    def pointer(array: Array) -> Any:
        return ctypes.c_void_p(array.ctypes.data)

    assert net.keep(1) < 0, "nothing was saved"
    net.reset()
    for x, label in samples(STEPS):
        assert net.run(pointer(x), pointer(y)) == net.run(pointer(x), pointer(y)) == 0
        before = y.copy()
        labels, rate = np.array([label], np.int32), np.array([RATE], np.float32)
        assert net.learn(pointer(x), pointer(labels), pointer(rate), pointer(y), pointer(loss)) == 0
        np.testing.assert_array_equal(y, before)
        assert float(loss[0]) == pytest.approx(reference.step(x, label, RATE), abs=ROUNDINGS)
        assert net.learn(pointer(x), None, pointer(rate), pointer(y), pointer(loss)) < 0
    assert net.keep(0) == 0 and net.run(pointer(x), pointer(y)) == 0
    learned = y.copy()
    net.reset()
    assert net.run(pointer(x), pointer(y)) == 0 and not np.array_equal(y, learned)
    assert net.keep(1) == 0 and net.run(pointer(x), pointer(y)) == 0
    np.testing.assert_array_equal(y, learned)


def test_a_quantised_backbone_stays_integer_and_learns_new_classes() -> None:
    """The digits' last layer learns that every digit is the next: the layers in front stay as they are."""
    graph = microc.load(digits.INT8)
    trained = microc.learn(graph, {"layers": 1})
    front = ("conv1", "depthwise2", "pointwise3", "conv4", "flat")
    assert all(trained.types[name] == graph.types[name] for name in front)
    assert trained.types["probabilities"] == graph.types["probabilities"]
    assert {trained.types[name].dtype for name in trained.state} == {"float32"}
    original, library = microc.compile(digits.INT8), microc.compile(digits.INT8, learn={"layers": 1})
    seen = [(image, (int(np.argmax(original(image))) + 1) % 10) for image in digits.images(40)]
    losses = [
        sum(float(library(image, np.array([label], np.int32), np.float32(0.02))[1]) for image, label in seen)
        for _ in range(3)
    ]
    assert losses[2] < losses[1] < losses[0] and losses[2] < losses[0] / 2


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_the_steps_of_an_emulated_m4_are_those_of_this_computer(tmp_path: Path) -> None:
    """Ten steps over the serial line, each a run of all kernels. The features are integers, equal in every bit; behind them
    both compute the same formulas with sums in another order, so that float32 roundings alone differ."""
    head = {"layers": 1, "optimiser": "momentum"}
    library = microc.compile(digits.INT8, learn=head)
    project = microc.compile(digits.INT8, board="mps2-an386", learn=head).write(tmp_path / "m4")
    microc.build(microc.open_project(project))
    with microc.Device(project) as device:
        for k, image in enumerate(digits.images(STEPS)):
            labels, rate = np.array([k % 10], np.int32), np.float32(0.01)
            expected, found = library(image, labels, rate), device.run(image, labels, rate)
            # A loss near 10 is the difference of logits below 100, of 96 products each.
            assert float(found[1]) == pytest.approx(float(expected[1]), abs=100 * 96 * 2.0**-24)
            assert np.abs(np.asarray(found[0], np.int32) - expected[0]).max() <= 1


@pytest.mark.parametrize(
    ("head", "error", "said"),
    [
        ({"layer": 1}, UsageError, "there is no field 'layer'"),
        ({"layers": 0}, UsageError, "layers"),
        ({"layers": 3}, UsageError, "layers=3 is out of range; got a network of 2 layers"),
        ({"layers": ["dens"]}, UsageError, "there is no layer 'dens'"),
        ({"optimiser": "sgdm"}, UsageError, "optimiser"),
        ({"momentum": 1.5}, UsageError, "momentum"),
        ({"loss": "hinge"}, UsageError, "loss"),
        ({"accumulate": 0}, UsageError, "accumulate"),
        (None, UsageError, "head"),
        ("missing.toml", OutputError, "cannot read"),
    ],
)
def test_wrong_declarations_are_refused(head: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        microc.learn(two_layers(), head)


def test_a_head_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "head.toml"
    path.write_text('[learn]\nlayers = ["dense5"]\nparameters = "biases"\noptimiser = "adam"\naccumulate = 4\n')
    head = load_head(path)
    assert head.layers == ("dense5",) and (head.optimiser, head.accumulate) == ("adam", 4)
    trained = microc.learn(microc.load(digits.INT8), path)
    learned = [name for name in trained.state if name.startswith("dense5")]
    assert {trained.types[name].size for name in learned} == {10}
    for text, said in (
        ("[learn", "not valid TOML"),
        ("[head]\n", "got the tables head"),
        ("learn = 1\n", "got the tables learn"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            load_head(path)


@pytest.mark.parametrize(
    ("name", "value"), [("stream", 1), ("relocatable", True), ("protocol", "mlperf"), ("bounds", {"n": 8})]
)
def test_conflicting_options_are_refused(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"learn cannot be combined with {name}"):
        microc.compile(two_layers(), board="mps2-an386", learn={}, **options).files()


def test_networks_with_state_are_refused() -> None:
    graph = microc.learn(two_layers(), {})
    with pytest.raises(UnsupportedError, match="state of its own"):
        microc.learn(graph, {"output": "y"})
