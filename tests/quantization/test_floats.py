# SPDX-License-Identifier: Apache-2.0
"""What is left in floats is told, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import microc
from microc.base.dtypes import Array
from microc.ops.control import UNBOUNDED, running_sum_loop_body
from microc.quantization.quantised_report import COMPUTED, FORMLESS, UNSEEN
from tests.quantization.networks import Net, classifier, images


def rows(count: int) -> Array:
    return np.random.default_rng(0).normal(size=(count, 2, 4)).astype(np.float32)


def test_nothing_is_left() -> None:
    assert microc.quantize(classifier(), images(4)).report["floats"] == {"operators": [], "share": 0.0}


def test_operators_without_an_integer_form() -> None:
    net = Net((2, 4))
    hidden = net.dense(net.x, 4)
    turned = net.op("dense", hidden, net.op("atan2", hidden, net.dense(net.x, 4)))
    report = microc.quantize(net.graph(net.dense(turned, 3)), rows(8)).report["floats"]
    assert [(told["op"], told["reason"]) for told in report["operators"]] == [("atan2", FORMLESS), ("dense", COMPUTED)]
    assert report["share"] == (2 * 2 * 4) / (2 * 2 * 4 * 4 + 2 * 2 * 4 + 2 * 2 * 3)


def test_loops_without_a_bound() -> None:
    net = Net((2, 4))
    hidden, write = net.dense(net.x, 4), net.builder
    yes, no = (write.constant(name, np.array(flag)) for name, flag in (("yes", True), ("no", False)))
    first = write.constant("first", np.zeros((2, 4), np.float32))
    body = running_sum_loop_body((2, 4), True)
    attrs: dict[str, Any] = {"body": replace(body, outputs=body.outputs[:2]), "count": UNBOUNDED, "carried": 2}
    _, total = write.emit_all("loop", (yes, first, hidden, no), {**attrs, "guarded": True})
    found = microc.quantize(net.graph(net.dense(total, 3)), rows(8))
    assert [(told["op"], told["reason"]) for told in found.report["floats"]["operators"]] == [("loop", UNSEEN)]
    assert found.report["outputs"][0]["decibels"] > 30
