"""A profile in the Trace Event Format, which Perfetto and chrome://tracing open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: an object with ``traceEvents``; complete events
(phase X) with ``ts`` and ``dur`` in microseconds, which nest where one encloses another; metadata events (phase M) name
processes and threads. Where the unit is instructions, a nanosecond stands for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from microc.driver.measure.clock import Clock
from microc.driver.measure.profile import KernelTime, Profile, short_layer

_PLACE = {"pid": 1, "tid": 1}


def to_trace(profile: Profile) -> dict[str, Any]:
    """One inference, in it the layers, in these their kernels; beside them, the bytes of the arena in use."""
    clock, unit, model = profile.clock, profile.unit, profile.project.manifest["model"]
    events = [
        _metadata("process_name", f"{model} on {profile.board}"),
        _metadata("thread_name", "1 ns stands for one instruction" if clock.counts else "kernels"),
        _complete(clock, model, "inference", 0, profile.time, {"macs": profile.macs}),
    ]
    start = 0
    for layer, found in groupby(profile.kernels, key=lambda k: k.layer):
        kernels = tuple(found)
        end = start + sum(k.time for k in kernels)
        arguments = {"macs": sum(k.macs for k in kernels), "layer": layer}
        events.append(_complete(clock, short_layer(layer), "layer", start, end, arguments))
        for k in kernels:
            events += _kernel(clock, k, start)
            start += k.time
    other = {"board": profile.board, "unit": unit, "unit_meaning": clock.meaning}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _kernel(clock: Clock, k: KernelTime, start: int) -> Iterator[dict[str, Any]]:
    arguments = {"kernel": k.kernel, "macs": k.macs, "schedule": k.rule, "arena": k.arena}
    yield _complete(clock, k.op, "kernel", start, start + k.time, arguments)
    yield {"name": "arena", "ph": "C", "ts": _nanoseconds(clock, start) / 1000, **_PLACE, "args": {"bytes": k.arena}}


def _complete(clock: Clock, name: str, category: str, start: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
    """An event from ``start`` to ``end``, in the clock's unit."""
    at, till = _nanoseconds(clock, start), _nanoseconds(clock, end)
    times = {"ts": at / 1000, "dur": (till - at) / 1000}
    return {"name": name, "cat": category, "ph": "X", **times, **_PLACE, "args": {clock.unit: end - start, **args}}


def _nanoseconds(clock: Clock, amount: int) -> int:
    return amount if clock.counts else round(amount * 1e9 / clock.tick_hz)


def _metadata(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "ts": 0, **_PLACE, "args": {"name": value}}
