"""Runs of a network on a board, one after the other: on samples in a loop, on random numbers, or on what the board has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from microc.driver.data.samples import Samples
from microc.driver.live.views import view
from microc.driver.measure.session import Device
from microc.driver.measure.verify import random_inputs
from microc.dtypes import Array
from microc.frozen import frozen

FROM_BOARD = "board"
"""The source of inputs that are not sent."""


@frozen
class Run:
    """One run. ``sample``: the number of its sample, and ``label`` its true class; None where there is none. ``ticks`` are the
    timer's."""

    number: int
    sample: int | None
    label: int | None
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    ticks: int


def runs(device: Device, source: Samples | str | int) -> Iterator[Run]:
    """Runs without end. ``source``: samples, taken in a loop; :data:`FROM_BOARD`, what the firmware itself puts into the inputs,
    which is read before the run; or the seed of random numbers. State lives from run to run."""
    device.reset()
    generator = np.random.default_rng(source if isinstance(source, int) else 0)
    number = 0
    while True:
        sample = number % len(source) if isinstance(source, Samples) else None
        if isinstance(source, Samples):
            inputs = source.sample(number % len(source))
        elif source == FROM_BOARD:
            inputs = tuple(device.read(tensor["name"]) for tensor in device.inputs)
        else:
            inputs = tuple(random_inputs(device.inputs, generator, device.shapes))
        if source != FROM_BOARD:
            device.set_inputs(*inputs)
        timing = device.client.run()
        outputs = tuple(device.read(tensor["name"]) for tensor in device.outputs)
        labels = source.labels if isinstance(source, Samples) else None
        label = int(labels[sample]) if labels is not None and sample is not None else None
        yield Run(number, sample, label, inputs, outputs, timing.max)
        number += 1


def event(device: Device, run: Run) -> dict[str, Any]:
    """A run as plain data for the page and for lines of JSON. ``answer``: the class of the first output that has several."""
    clock = device.clock
    amount = clock.amount(run.ticks)
    scores = next((array for array in run.outputs if array.size > 1), None)
    return {
        "run": run.number,
        "sample": run.sample,
        "time": amount,
        "unit": clock.unit,
        "seconds": clock.seconds(amount),
        "label": run.label,
        "answer": int(np.argmax(scores)) if scores is not None else None,
        "inputs": [view(tensor, array) for tensor, array in zip(device.inputs, run.inputs, strict=True)],
        "outputs": [
            view(tensor, array, output=True) for tensor, array in zip(device.outputs, run.outputs, strict=True)
        ],
    }
