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
from microc.compiler.validation import load_head
from microc.errors import FitError, OutputError, UnsupportedError, UsageError
from microc.graph import ir
from microc.graph.ir import Graph
from microc.ops.meaning import reference_node_function
from tests.device.smoke import needs
from tests.support import digits
from tests.support.learning import RATE, STEPS, samples, two_layers
from tests.support.native import WARNINGS

ROUNDINGS = 64 * 2.0**-24
"""Bound of ten steps: each value is made of some dozen float32 operations on numbers near 1, each rounded by 2**-24 at most."""


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


class ReplayReference:
    """Steps of a dense layer behind frozen features with a replay buffer, in float64: rings of int8 features by class."""

    def __init__(self, graph: Graph, slots: int, classes: int = 3) -> None:
        self.front = tuple(graph.consts[name].astype(np.float64) for name in ("w1", "b1"))
        self.w, self.b = (graph.consts[name].astype(np.float64) for name in ("w2", "b2"))
        self.rings: list[list[Array]] = [[] for _ in range(classes)]
        self.stored, self.slots, self.following = [0] * classes, slots, 0

    def step(self, x: Array, label: int, rate: float) -> float:
        h = np.maximum(x.astype(np.float64) @ self.front[0].T + self.front[1], 0)
        loss, *gradients = self._gradients(h, label)
        count = len(self.rings) * self.slots
        order = [(self.following + k) % count for k in range(count)]
        picked = next((s for s in order if s % self.slots < len(self.rings[s // self.slots])), None)
        if picked is not None:
            self.following = (picked + 1) % count
            again = self._gradients(self.rings[picked // self.slots][picked % self.slots], picked // self.slots)[1:]
            gradients = [(a + b) / 2 for a, b in zip(gradients, again, strict=True)]
        scale = max(np.abs(h).max(), 1e-30) / 127
        ring, place = self.rings[label], self.stored[label] % self.slots
        ring[place : place + 1] = [np.round(h / scale) * scale]
        self.stored[label] += 1
        self.w, self.b = self.w - rate * gradients[0], self.b - rate * gradients[1]
        return float(loss)

    def _gradients(self, h: Array, label: int) -> tuple[Array, Array, Array]:
        logits = h @ self.w.T + self.b
        powers = np.exp(logits - logits.max())
        g = powers / powers.sum()
        loss = -np.log(g[0, label])
        g[0, label] -= 1
        return loss, g.T @ h, g[0]


def test_replay_learns_samples_of_all_classes_again() -> None:
    """Samples come class by class; a ring that is full drops its oldest. A stored feature is rounded by half of 1/127 of
    the largest, and a rounding that falls to the other side moves one by a whole such step."""
    graph = two_layers(generator=np.random.default_rng(3))
    library = microc.compile(graph, learn={"layers": 1, "replay": 2})
    reference, generator = ReplayReference(graph, 2), np.random.default_rng(4)
    labels = [0, 0, 0, 2, 2, 2, 2, 0, 1, 1, 1, 1, 1, 0, 2]
    losses = []
    for label in labels:
        x = generator.normal(size=(1, 5)).astype(np.float32)
        losses.append(
            (float(library(x, np.array([label], np.int32), np.float32(RATE))[1]), reference.step(x, label, RATE))
        )
    ours, expected = np.transpose(losses)
    np.testing.assert_allclose(ours, expected, atol=ROUNDINGS + 0.02 / 127)
    assert reference.stored == [5, 5, 5] and all(len(ring) == 2 for ring in reference.rings)


def test_a_new_class_is_learned_without_forgetting() -> None:
    """Twenty samples of a class that the model does not have: with replay of features the others stay, without they do not."""
    images, truth = digits.images(60), digits.labels(60)
    new = [np.asarray(127 - np.asarray(image, np.int32) - 128, np.int8) for image in images[:30]]  # negatives: class 10
    right = {}
    for replay in (0, 3):
        library = microc.compile(digits.INT8, learn={"layers": 1, "classes": 11, "replay": replay})
        assert library.outputs[0]["shape"] == [1, 11]
        old = [np.argmax(library(image)) for image in images]
        for image, label in zip(images[:30], truth, strict=False):
            library(image, np.array([label], np.int32), np.float32(0))  # fills the buffer, learns nothing
        assert [np.argmax(library(image)) for image in images] == old
        for _ in range(3):
            for image in new[:20]:
                library(image, np.array([10], np.int32), np.float32(0.02))
        kept = sum(np.argmax(library(image)) == label for image, label in zip(images[30:], truth[30:], strict=True))
        right[replay] = kept, sum(np.argmax(library(image)) == 10 for image in new[20:])
    assert right[3][0] >= 28 and right[3][1] >= 9 and right[3][0] >= right[0][0]


def test_replay_keeps_the_last_value_that_all_learning_layers_read() -> None:
    """Frozen channels and the layers that learn read the same features; layers that add two inputs read none alone."""
    graph = microc.learn(two_layers(), {"layers": 1, "channels": 1, "replay": 2})
    assert graph.state["replay.features"].shape == (6, 4)
    net = microc.GraphBuilder()
    total = net.op(
        "add", net.input("a", (1, 2)), net.op("dense", net.input("b", (1, 2)), net.constant("w", np.ones((2, 2))))
    )
    with pytest.raises(UnsupportedError, match="replay takes one sample in a run; got a, b"):
        microc.learn(net.graph("sums", {"y": total}), {"replay": 1})


@pytest.mark.parametrize("channels", [2, [0, 2]])
def test_chosen_channels_learn_and_the_others_stay(channels: Any) -> None:
    """The steps are those of the whole layer, of which the other rows are put back."""
    graph = two_layers(generator=np.random.default_rng(3))
    library = microc.compile(graph, learn={"layers": 1, "channels": channels})
    rows = [1, 2] if channels == 2 else channels
    assert sum(np.prod(library.tensor(n).shape) for n in library.manifest["learning"]["learned"]) == 2 * (4 + 1)
    reference = Reference(graph, 1, "sgd")
    for x, label in samples(STEPS):
        before = {name: data.copy() for name, data in reference.w.items()}
        found, expected = library(x, np.array([label], np.int32), np.float32(RATE))[1], reference.step(x, label, RATE)
        assert float(found) == pytest.approx(expected, abs=ROUNDINGS)
        for name in ("w2", "b2"):
            frozen = [k for k in range(3) if k not in rows]
            reference.w[name][frozen] = before[name][frozen]


def convolutions(groups: int, depth: int) -> Graph:
    """A convolution of groups with four outputs, and a dense layer."""
    rng, net = np.random.default_rng(6), microc.GraphBuilder()

    def draw(name: str, *shape: int) -> str:
        return net.constant(name, (rng.normal(size=shape) * 0.5).astype(np.float32))

    x = net.input("x", (1, 3, 4, groups * depth))
    h = net.op("conv2d", x, draw("w1", 4, 2, 2, depth), draw("b1", 4), groups=groups, activation="relu")
    return net.graph("grouped", {"y": net.op("dense", net.reshape(h, (1, 24)), draw("w2", 3, 24), draw("b2", 3))})


@pytest.mark.parametrize(("groups", "channels"), [(4, 2), (4, [0, 2]), (2, [1]), (2, 3), (1, [3, 0])])
def test_chosen_channels_of_a_depthwise_convolution_learn(groups: int, channels: Any) -> None:
    """Its gradients are those of the whole layer; two outputs read one input channel with two groups."""
    graph = convolutions(groups, 1)
    layers = list(graph.nodes[0].outputs)
    whole, part = microc.learn(graph, {"layers": layers}), microc.learn(graph, {"layers": layers, "channels": channels})
    order = list(range(4))[-channels:] if isinstance(channels, int) else sorted(channels)
    x = np.random.default_rng(7).normal(size=graph.types["x"].shape).astype(np.float32)
    inputs = [{"x": x, "labels": np.array([1], np.int32), "rate": np.asarray(np.float32(RATE))}]
    (expected,), after = run_in_numpy(whole, inputs)
    (found,), state = run_in_numpy(part, inputs)
    assert float(found) == pytest.approx(float(expected), abs=ROUNDINGS)
    learned = state["w1.learned"], state["b1.learned"]
    for rows, name in zip(learned, ("w1", "b1"), strict=True):
        np.testing.assert_allclose(rows, after[name][order], atol=ROUNDINGS)


def test_channels_of_wide_groups_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="2 groups of 3 input channels, expected one group"):
        microc.learn(convolutions(2, 3), {"layers": 2, "channels": 1})
    microc.learn(convolutions(2, 3), {"layers": 1, "channels": 1})


@pytest.mark.parametrize(("op", "gates"), [("lstm", 4), ("gru", 3)])
def test_a_recurrent_layer_learns(op: str, gates: int) -> None:
    """The sign of the first of four numbers, which the last state must remember."""
    rng, net = np.random.default_rng(5), microc.GraphBuilder()

    def draw(name: str, *shape: int) -> str:
        return net.constant(name, (rng.normal(size=shape) * 0.5).astype(np.float32))

    states = [net.constant(f"state{k}", np.zeros((1, 4), np.float32)) for k in range(2 if op == "lstm" else 1)]
    operands = (
        net.input("x", (1, 4, 1)),
        draw("w", gates * 4, 1),
        draw("r", gates * 4, 4),
        *states,
        draw("b", gates * 4),
    )
    rows = net.emit_all(op, operands)[0]
    last = net.reshape(net.op("slice", rows, begin=(0, 3, 0), end=(1, 4, 4), strides=(1, 1, 1)), (1, 4))
    graph = net.graph(op, {"y": net.op("dense", last, draw("w2", 2, 4), draw("b2", 2))})
    library, plain = microc.compile(graph, learn={"layers": 2, "optimiser": "adam"}), microc.compile(graph)
    assert {"w", "r", "b", "w2", "b2"} < set(library.manifest["learning"]["learned"])
    data = rng.normal(size=(40, 1, 4, 1)).astype(np.float32)
    np.testing.assert_allclose(library(data[0]), plain(data[0]), atol=ROUNDINGS)
    losses = [
        np.mean([float(library(x, np.array([x[0, 0, 0] > 0], np.int32), np.float32(0.03))[1]) for x in data])
        for _ in range(6)
    ]
    assert losses[-1] < 0.4 < losses[0]


BANKS = """
#include "microc_store.h"
#include <string.h>
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
"""
"""Banks in RAM, as long as the power lasts."""
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
    const struct microc_store store = { pieces, TWO_LEARNED_COUNT, 7, 0 };
    for (uint32_t k = 0; k < TWO_LEARNED_COUNT; k++) {
        pieces[k].data = two_learned(memory, k, &pieces[k].size);
    }
    return restores ? microc_store_restore(&store) : microc_store_save(&store);
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
    (tmp_path / "main.c").write_text("#include <stddef.h>\n" + BANKS + MAIN)
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
def test_the_steps_of_an_emulated_m4_are_those_of_this_computer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten steps over the serial line, each a run of all kernels. The features are integers, equal in every bit; behind them
    both compute the same formulas with sums in another order, so that float32 roundings alone differ."""
    head = {"layers": 1, "optimiser": "momentum"}
    library = microc.compile(digits.INT8, learn=head)
    project = microc.compile(digits.INT8, board="mps2-an386", learn=head).write(tmp_path / "m4")
    (project / "banks.c").write_text(BANKS.replace("4096", "16384"))
    monkeypatch.setenv("EXTRA_SOURCES", "banks.c")
    microc.build(microc.open_project(project))
    with microc.Device(project) as device:
        for k, image in enumerate(digits.images(STEPS)):
            labels, rate = np.array([k % 10], np.int32), np.float32(0.01)
            answer, found = device.run(image), device.learn(image, labels, rate=0.01)
            expected = library(image, labels, rate)
            # A loss near 10 is the difference of logits below 100, of 96 products each.
            assert found == pytest.approx(float(expected[1]), abs=100 * 96 * 2.0**-24)
            assert np.abs(np.asarray(answer, np.int32) - expected[0]).max() <= 1
        learned = device.run(image)
        device.save_to_bank()
        device.reset()
        assert not np.array_equal(device.run(image), learned)
        device.restore_from_bank()
        np.testing.assert_array_equal(device.run(image), learned)
        assert [(bank.state, bank.newest) for bank in device.banks()] == [("whole", True), ("empty", False)]


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
        ({"classes": 3}, UsageError, "classes=3 does not extend"),
        ({"classes": -1}, UsageError, "classes"),
        ({"channels": [3]}, UsageError, "got channel 3 of dense with 3"),
        ({"channels": 1.5}, UsageError, "channels"),
        ({"replay": 2, "loss": "mean_squared_error"}, UsageError, "replay requires classes"),
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


def test_a_quantised_backbone_is_not_to_be_quantised() -> None:
    """What it learns stays floats; a float network is advised to be quantised."""
    for model, is_advised in ((digits.INT8, False), (two_layers(), True)):
        with pytest.raises(FitError) as caught:
            microc.compile(model, board="mps2-an386", ram=16, learn={"layers": 1})
        assert ("quantise it" in (caught.value.hint or "")) == is_advised
