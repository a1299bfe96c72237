# SPDX-License-Identifier: Apache-2.0
"""Networks that learn: steps beside numpy's, on this computer, in plain C and on an emulated board."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.base.file_access import runtime_c_folder
from microc.cli import main
from microc.codegen.c.source import network_files
from microc.compiler.validation import load_head
from microc.device.client import save_to_bank
from microc.errors import DeviceError, OutputError, UnsupportedError, UsageError
from microc.graph import ir
from microc.graph.ir import Graph
from microc.ops.meaning import reference_node_function
from microc.run.data.samples import learned_tensors
from tests.device.smoke import needs
from tests.support import digits
from tests.support.native import WARNINGS

RNG = np.random.default_rng(2)
STEPS, RATE = 10, 0.1
ROUNDINGS = 64 * 2.0**-24
"""Bound of ten steps: each value is made of some dozen float32 operations on numbers near 1, each rounded by 2**-24 at most."""


def two_layers(classes: int = 3, generator: np.random.Generator = RNG) -> Graph:
    """Two dense layers with a relu between, and a softmax."""
    net = microc.GraphBuilder()

    def draw(*shape: int) -> Array:
        return np.asarray(generator.normal(size=shape) * 0.5, np.float32)

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
FILE_BANKS = """
#include "microc_store.h"
#include <stdio.h>
int microc_port_bank_read(uint32_t bank, uint32_t offset, uint8_t *data, uint32_t size)
{
    FILE *file = fopen(bank == 0 ? "FOLDER/bank0" : bank == 1 ? "FOLDER/bank1" : "FOLDER/none", "rb");
    const int failed = file == NULL || fseek(file, (long)offset, SEEK_SET) != 0 || fread(data, 1, size, file) != size;
    return file == NULL || fclose(file) != 0 || failed;
}
int microc_port_bank_write(uint32_t bank, uint32_t offset, const uint8_t *data, uint32_t size)
{
    FILE *file = fopen(bank == 0 ? "FOLDER/bank0" : bank == 1 ? "FOLDER/bank1" : "FOLDER/none", "r+b");
    int failed = file == NULL || fseek(file, (long)offset, SEEK_SET) != 0;
    for (uint32_t k = 0; failed == 0 && k < size; k++) {
        failed = fputc(data == NULL ? 0xFF : data[k], file) == EOF;
    }
    return file == NULL || fclose(file) != 0 || failed;
}
"""
"""Banks that are files of a folder."""
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


@pytest.fixture(scope="module")
def learning_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A firmware for this computer with three networks: two learn, one does not."""
    folder = tmp_path_factory.mktemp("learning") / "firmware"
    regression = microc.GraphBuilder()
    x = regression.input("x", (1, 3))
    y = regression.op("dense", x, regression.constant("w", np.ones((2, 3), np.float32)))
    graphs = (
        two_layers(generator=np.random.default_rng(3)),
        regression.graph("line", {"y": y}),
        microc.load(digits.INT8),
    )
    heads = ({"layers": 2, "optimiser": "momentum"}, {"loss": "mean_squared_error"}, None)
    names = ("two", "line", "digits")
    programs = (
        microc.compile(graph, board="host", learn=head, name=name)
        for graph, head, name in zip(graphs, heads, names, strict=True)
    )
    microc.bundle(*programs).write(folder)
    microc.build(microc.open_project(folder))
    return folder


def test_a_device_infers_learns_saves_and_restores(learning_project: Path, tmp_path: Path) -> None:
    seen, saved = samples(STEPS), tmp_path / "learned.npz"
    with microc.Device(learning_project, network="two") as device:
        before = device.run(seen[0][0])
        assert isinstance(before, np.ndarray) and before.shape == (1, 3)
        np.testing.assert_array_equal(device.run(seen[0][0]), before)
        losses = [device.learn(x, label, rate=RATE) for x, label in seen]  # a label alone, without array and dtype
        learned = device.run(seen[0][0])
        assert not np.array_equal(learned, before)
        device.save_weights(saved)
        device.reset()
        np.testing.assert_array_equal(device.run(seen[0][0]), before)
        assert device.learn(seen[0][0], [seen[0][1]], rate=RATE) == losses[0]
        device.restore_weights(saved)
        np.testing.assert_array_equal(device.run(seen[0][0]), learned)
        with np.load(saved) as arrays:
            # Four tensors and their velocities, and the digest of the network.
            assert len(arrays.files) - 1 == len(device.learning["learned"]) == 8
            wrong: dict[str, Any] = {name: np.zeros(1, np.float32) for name in arrays.files}
        np.savez(saved, **wrong)
        with pytest.raises(UsageError, match="the weights are of another network; got float32"):
            device.restore_weights(saved)
        np.testing.assert_array_equal(device.run(seen[0][0]), learned)
        for labels, said in ((1.5, "does not hold"), ([1, 2], "got 2 numbers, expected 1"), ("a", "expected an array")):
            with pytest.raises(UsageError, match=said):
                device.learn(seen[0][0], labels, rate=RATE)
        with pytest.raises(UsageError, match="rate"):
            device.learn(*seen[0], rate=-1.0)
    with microc.Device(learning_project, network="digits") as device:
        with pytest.raises(UsageError, match="'digits' does not learn"):
            device.learn(digits.images(1)[0], 0, rate=RATE)
        with pytest.raises(UsageError, match="'digits' does not learn"):
            device.save_weights(saved)


@pytest.fixture
def banks(learning_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of two banks in files, which outlive the firmware in its folder ``firmware``."""
    project = tmp_path / "firmware"
    shutil.copytree(learning_project, project)
    (project / "banks.c").write_text(FILE_BANKS.replace("FOLDER", str(tmp_path)))
    for k in range(2):
        (tmp_path / f"bank{k}").write_bytes(b"\xff" * 4096)
    monkeypatch.setenv("EXTRA_SOURCES", "banks.c")
    microc.build(microc.open_project(project))
    return tmp_path


def assert_same_arrays(first: Path, second: Path) -> None:
    with np.load(first) as left, np.load(second) as right:
        assert left.files == right.files
        for name in left.files:
            np.testing.assert_array_equal(left[name], right[name])


def test_banks_are_read_written_and_cleared_over_the_line(banks: Path) -> None:
    x, label = samples(1)[0]
    first, second = banks / "first.npz", banks / "second.npz"
    with microc.Device(banks / "firmware", network="two") as device:
        assert {bank.state for bank in device.banks()} == {"empty"}
        with pytest.raises(DeviceError, match="no bank contains learned weights"):
            device.fetch_bank(first)
        with pytest.raises(DeviceError, match="RESTORE: no bank contains a whole save") as raised:
            device.restore_from_bank()
        assert raised.value.hint == "save the weights first: microc learn --keep"
        assert device.learn(x, label, rate=RATE) > 0
        device.save_to_bank()
        device.fetch_bank(first)
        device.save_weights(second)
        assert_same_arrays(first, second)
        learned = device.run(x)
        assert device.learn(x, label, rate=RATE) > 0
        device.save_to_bank()
        device.save_weights(second)
    with microc.Device(banks / "firmware", network="two") as device:  # it has started with the newest bank
        later = device.run(x)
        assert not np.array_equal(learned, later)
        device.save_to_bank(first)
        old, new = device.banks()[::-1]
        assert (old.state, old.newest, new.newest, new.sequence) == ("whole", False, True, old.sequence + 1)
        assert old.identity == new.identity and old.nbytes == new.nbytes > 8 * 16 and old.check != new.check
        np.testing.assert_array_equal(device.run(x), learned)
        damaged = bytearray((banks / "bank0").read_bytes())
        damaged[40] ^= 1
        (banks / "bank0").write_bytes(damaged)
        assert [bank.state for bank in device.banks()] == ["damaged", "whole"]
        device.restore_from_bank()
        np.testing.assert_array_equal(device.run(x), later)
        device.clear_banks()
        assert {bank.state for bank in device.banks()} == {"empty"}
    said = "SAVE: the board could not read, erase or write its banks"  # another network has other banks
    with microc.Device(banks / "firmware", network="line") as device, pytest.raises(DeviceError, match=said):
        device.save_to_bank()
    with microc.Device(banks / "firmware", network="line") as device:
        assert {(bank.state, bank.newest) for bank in device.banks()} == {("unreadable", False)}
        for name, request in (("RESTORE", device.restore_from_bank), ("BANK_READ", lambda: device.fetch_bank(first))):
            with pytest.raises(DeviceError, match=f"{name}: the board could not read") as raised:
                request()
            assert "microc_port_bank_read" in raised.value.hint
    said = "BANK: the network does not learn"
    with microc.Device(banks / "firmware", network="digits") as device, pytest.raises(DeviceError, match=said):
        device.banks()


def test_weights_that_are_not_whole_or_of_another_network_are_not_kept(banks: Path) -> None:
    x, label = samples(1)[0]
    file, other = banks / "learned.npz", banks / "other.npz"
    with microc.Device(banks / "firmware", network="two") as device:
        device.learn(x, label, rate=RATE)
        device.save_to_bank()
        device.save_weights(file)
        kept, before = device.run(x), device.banks()
        with np.load(file) as arrays:
            content = dict(arrays)
        damaged = bytearray(file.read_bytes())
        damaged[damaged.index(content[device.learning["learned"][0]].tobytes()) + 3] ^= 1
        for data in (bytes(damaged), file.read_bytes()[:-100]):
            other.write_bytes(data)
            with pytest.raises(UsageError, match="cannot read arrays"):
                device.save_to_bank(other)
        content["network.sha256"] = content["network.sha256"][::-1]
        np.savez(other, **content)
        with pytest.raises(UsageError, match="the weights are of another network; got digest"):
            device.save_to_bank(other)
        learned = learned_tensors(device.project.manifest)
        sent = [device.client.read_tensor(device._index[tensor["name"]]) for tensor in learned.tensors]
        with pytest.raises(DeviceError, match="SAVE: the weights are of another network"):
            save_to_bank(device.client, sent, learned.identity + 1)
        with pytest.raises(DeviceError, match="SAVE: the weights are of another network"):
            save_to_bank(device.client, sent[:-1], learned.identity)
        with pytest.raises(DeviceError, match="SAVE: the weights are not there whole"):
            save_to_bank(device.client, [bytes(len(tensor)) for tensor in sent], learned.identity)
        # The line is cut in the middle of a transfer: the weights in use are lost, those of the bank are not.
        device.client.write_tensor(device._index[learned.tensors[0]["name"]], bytes(8), allow_fewer_bytes=True)
        assert device.banks() == before
    with microc.Device(banks / "firmware", network="two") as device:
        np.testing.assert_array_equal(device.run(x), kept)


def learn_by_command(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code = main(["learn", *map(str, words), "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0 or "error" in answer
    return answer


def test_the_command_learns_from_files(
    learning_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, learned = tmp_path / "data.npz", tmp_path / "learned.npz"
    x = np.random.default_rng(4).normal(size=(40, 1, 5)).astype(np.float32)
    labels = (x[:, 0, 0] > 0).astype(int)
    np.savez(data, x=x, labels=labels)
    common = (learning_project, "--network", "two", "--labels", "labels")
    answer = learn_by_command(capsys, *common, "--data", data, "--rate", "0.05", "--epochs", 4, "--save", learned)
    right = [answer[f"quality_{when}"]["classification"]["correct"] for when in ("before", "after")]
    assert len(answer["losses"]) == 4 and answer["losses"][3] < answer["losses"][0]
    assert right[1] > max(right[0], 30) and answer["saved"] == str(learned)
    assert answer["inference_time"] > 0 and answer["step_time"] > 0
    again = learn_by_command(capsys, *common, "--test", data, "--restore", learned)
    assert again["quality_before"] == again["quality_after"] == answer["quality_after"] and again["losses"] == []
    said = learn_by_command(capsys, *common, "--keep")["error"]["what"]
    assert "SAVE: the board could not read, erase or write its banks" in said
    for words, said in (
        ((*common,), "neither --data nor --test"),
        ((learning_project, "--network", "two", "--data", data), "got none, expected the class number"),
        ((learning_project, "--network", "digits", "--data", data), "'digits' does not learn"),
        ((*common, "--data", data, "--rate", "1e5"), "learning diverges: the loss of sample"),
        ((*common, "--data", data, "--restore", data), "the weights are of another network"),
    ):
        assert said in learn_by_command(capsys, *words)["error"]["what"]
    np.savez(data, x=x, labels=labels + 2)
    assert "label 3 is beyond the 3 classes" in learn_by_command(capsys, *common, "--data", data)["error"]["what"]


def test_the_command_keeps_and_fetches_weights(banks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, learned, fetched = banks / "data.npz", banks / "learned.npz", banks / "fetched.npz"
    x = np.random.default_rng(4).normal(size=(10, 1, 5)).astype(np.float32)
    np.savez(data, x=x, labels=(x[:, 0, 0] > 0).astype(int))
    common = (banks / "firmware", "--network", "two")
    words = ("--labels", "labels", "--data", data, "--rate", "0.05", "--save", learned, "--keep")
    answer = learn_by_command(capsys, *common, *words)
    assert [bank["state"] for bank in answer["banks"]] == ["whole", "empty"] and answer["banks"][0]["newest"]
    answer = learn_by_command(capsys, *common, "--fetch", fetched, "--clear")
    assert [bank["state"] for bank in answer["banks"]] == ["empty", "empty"] and answer["fetched"] == str(fetched)
    assert answer["quality_before"] is None
    assert_same_arrays(fetched, learned)
    assert main(["learn", *map(str, common), "--restore", str(learned), "--keep"]) == 0
    assert "restored at boot" in capsys.readouterr().out


def test_the_command_learns_real_numbers(
    learning_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = RNG.normal(size=(30, 1, 3)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    np.save(tmp_path / "expected.npy", x[:, :, :2] - 2 * x[:, :, 1:])
    common = (learning_project, "--network", "line", "--data", tmp_path / "data.npz")
    answer = learn_by_command(capsys, *common, "--expected", tmp_path / "expected.npy", "--rate", "0.1", "--epochs", 5)
    assert answer["quality_after"]["outputs"][0]["rmse"] < answer["quality_before"]["outputs"][0]["rmse"] / 10
    assert "got 0 expected outputs" in learn_by_command(capsys, *common)["error"]["what"]


def test_samples_are_verified_without_labels_and_rate(
    learning_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Board and host infer with a rate of 0: all samples have the answers of the model."""
    images = digits.images(6)
    np.savez(tmp_path / "data.npz", x=RNG.normal(size=(6, 1, 5)).astype(np.float32), labels=np.zeros(6, int))
    words = (learning_project, "--network", "two", "--data", tmp_path / "data.npz", "--labels", "labels", "--json")
    assert main(["verify", *map(str, words)]) == 0
    assert json.loads(capsys.readouterr().out)["evaluation"]["differing_samples"] == []
    original, library = microc.compile(digits.INT8), microc.compile(digits.INT8, learn={"layers": 1})
    answers = [np.argmax(original(image)) == np.argmax(library(image)) for image in images]
    assert all(answers), "a library infers without labels and rate, too"


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
