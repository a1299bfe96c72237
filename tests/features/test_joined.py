# SPDX-License-Identifier: Apache-2.0
"""Features and network as one graph: what goes in are samples, on a computer and on an emulated board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import UsageError
from microc.features import Pipeline, Preemphasis, join, log_mel
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.ops.meaning import evaluate
from microc.run.board_project import build_project, open_project
from tests.device.smoke import needs
from tests.features.sounds import int16, sound


def network(shape: tuple[int, ...], quant: Quant | None = None) -> Graph:
    """One that gives back what it takes."""
    net = GraphBuilder("network")
    x = net.input("x", shape, "float32" if quant is None else "int8", quant)
    y = net.set_quant(net.op("clip", x, minimum=-50.0, maximum=50.0), quant, "float32" if quant is None else "int8")
    return net.graph("net", {"y": y})


FRONT = log_mel(input_dtype="int16", frame_step=240)


@pytest.mark.parametrize("shape", [(1, 6, 40), (1, 6, 40, 1), (1, 1, 6, 40), (1, 240)])
def test_floats_come_as_they_are(shape: tuple[int, ...]) -> None:
    q = int16(sound(0.2))[: FRONT.samples(6)]
    graph = join(FRONT, network(shape))
    assert graph.inputs == ("samples",) and graph.types["samples"].shape == (1, FRONT.samples(6))
    got = np.asarray(microc.compile(graph)(q[None]))
    np.testing.assert_allclose(got.reshape(6, 40), FRONT(q), rtol=1e-6)


def test_bands_first() -> None:
    q = int16(sound(0.2))[: FRONT.samples(6)]
    got = np.asarray(microc.compile(join(FRONT, network((1, 40, 6)), bands_first=True))(q[None]))
    np.testing.assert_allclose(got[0], FRONT(q).T, rtol=1e-6)
    with pytest.raises(UsageError) as refused:
        join(FRONT, network((1, 40, 6)))
    assert "bands_first=True" in refused.value.hint


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_integers_are_those_of_the_networks_scale(dtype: str) -> None:
    front, quant = log_mel(input_dtype=dtype, frame_step=240), Quant((0.1,), (20,))
    x = sound(0.2)[: front.samples(6)]
    x = int16(x) if dtype == "int16" else x
    graph = join(front, network((1, 6, 40), quant))
    got = np.asarray(microc.compile(graph)(x[None]))
    assert got.dtype == np.int8
    np.testing.assert_allclose(0.1 * (got[0].astype(float) - 20), np.clip(front(x), -14.8, 10.7), atol=0.051)
    if dtype == "int16":
        np.testing.assert_array_equal(got, evaluate(graph, {"samples": x[None]})[0][0])


@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.cross
@pytest.mark.emulator
def test_a_board_hears_what_numpy_hears(tmp_path: Path) -> None:
    """Fixed point, hop by hop: every frame in every bit."""
    graph = join(FRONT, network((1, 6, 40), Quant((0.1,), (20,))))
    q = int16(sound(0.2))[: FRONT.samples(6)]
    (want,), _ = evaluate(graph, {"samples": q[None]})
    project = open_project(microc.compile(graph, board="mps2-an386", stream=1).write(tmp_path / "firmware"))
    build_project(project)
    with microc.Device(project) as device:
        line = np.concatenate([q, np.zeros(480, np.int16)])[None]
        rows = [np.asarray(device.run(line[:, n : n + 240])).reshape(40) for n in range(0, 7 * 240, 240)]
    np.testing.assert_array_equal(np.array(rows)[1:], want[0])


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: join(log_mel(), network((1, 49, 10))), "as many features a frame"),
        (lambda: join(log_mel(), network((1, 6, 40)), input="y"), "inputs: x"),
        (lambda: join(Pipeline((Preemphasis(),)), network((1, 6, 40))), "Frames"),
        (lambda: join("log_mel", network((1, 6, 40))), "log_mel()"),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_is_refused(make: Any, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        make()
    assert hint in refused.value.hint
