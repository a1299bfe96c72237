"""The samples that a network checks itself with: read from a file, run on this computer, and put beside its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from microc import __version__, dtypes
from microc.codegen.network import shared_files
from microc.driver.data.files import read
from microc.driver.data.samples import Samples, read_samples
from microc.driver.desktop.load import build_library
from microc.driver.report.summary import tensor_data
from microc.dtypes import Array
from microc.errors import UnsupportedError, UsageError, VerificationError
from microc.module import Module, SelfTest, Value
from microc.plugin import PORTABLE

MOST_BYTES = 1 << 16
"""Of flash; a test is a few samples, an evaluation is `microc verify --data`."""
BOUND = 1e-4
"""What floats may differ by, relative to the largest magnitude of their output over all samples: sums in another order and other
C libraries stay below it, a wrong weight that matters does not."""


def with_self_test(module: Module, data: Path) -> Module:
    """The module with the samples of a file (:func:`microc.driver.data.samples.read_samples`), which are one sequence for a
    network with state, and with the outputs that it gives for them on this computer.

    Outputs that the file has must be those: integers equal, floats within :data:`BOUND`; VerificationError otherwise. UsageError
    for data that do not fit or take more than :data:`MOST_BYTES`.
    """
    if module.options["protocol"] == "mlperf":
        raise UsageError("firmware for MLPerf's runner has no self-test", hint="leave out self_test, or the protocol")
    for name in module.outputs:
        if module.values[name].dtype in dtypes.HALF:
            raise UnsupportedError(
                f"a self-test of the {module.values[name].dtype} output {name!r}",
                where=module.source,
                hint="--output-dtype float32 makes it one that can be compared",
            )
    samples = _read(module, data)
    size = len(samples) * sum(module.values[name].nbytes for name in (*module.inputs, *module.outputs))
    if size > MOST_BYTES:
        raise UsageError(
            f"the self-test's {len(samples)} samples take {size:,} bytes of flash, {MOST_BYTES:,} are allowed",
            where=str(data),
            hint="give fewer samples: what the network gets right is found by microc verify --data",
        )
    found = _run(module, samples)
    for name, expected in samples.expected.items():
        _check(name, expected, found[name], data)
    bounds = {
        name: BOUND * float(np.abs(array).max(initial=0))
        for name, array in found.items()
        if dtypes.is_float(module.values[name].dtype)
    }
    names = _fresh(module)
    inputs = dict(zip(module.inputs, samples.inputs, strict=True))
    stored, answers = (
        {name: _constant(names[name], array) for name, array in each.items()} for each in (inputs, found)
    )
    return replace(module, self_test=SelfTest(len(samples), stored, answers, bounds))


def _read(module: Module, data: Path) -> Samples:
    inputs, outputs = ([tensor_data(module, name) for name in names] for names in (module.inputs, module.outputs))
    if not inputs:
        raise UsageError("a network without inputs has no samples", where=module.source, hint="leave out self_test")
    known = {word for tensor in outputs for word in (tensor["name"], tensor["label"])}
    return read_samples(inputs, outputs, data, expected=data if known & set(read(data)) else None)


def _run(module: Module, samples: Samples) -> dict[str, Array]:
    """The outputs of all samples, by name."""
    library = build_library(shared_files(module.own or module, __version__), f"-D{PORTABLE}")
    library.reset()
    rows: list[Sequence[Array]] = []
    for number in range(len(samples)):
        result = library(*samples.sample(number))
        rows.append(result if isinstance(result, tuple) else (result,))
    found = {name: np.stack([row[k] for row in rows]) for k, name in enumerate(module.outputs)}
    for name, array in found.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(
                f"output {name!r} of the self-test holds infinities or NaN, which are near nothing",
                where=module.source,
                hint="give samples whose outputs are finite",
            )
    return found


def _check(name: str, expected: Array, found: Array, data: Path) -> None:
    if found.dtype.kind == "f":
        near = np.abs(expected.astype(np.float64) - found) <= BOUND * np.abs(found).max(initial=0)
    else:
        near = expected == found
    if not near.all():
        sample = int(np.argwhere(~near)[0][0])
        wrong = int(np.count_nonzero(~near[sample]))
        raise VerificationError(
            f"{wrong} of {near[sample].size} numbers of {name!r} are not what the self-test expects, in sample {sample + 1}",
            where=str(data),
            hint="leave the outputs out, and those that the network gives here are expected; or see where it differs: "
            "microc verify --against",
        )


def _fresh(module: Module) -> Mapping[str, str]:
    """Names for the constants, by input or output."""
    taken = set(module.values)

    def first(stem: str) -> str:
        name = next(each for each in _numbered(stem) if each not in taken)
        taken.add(name)
        return name

    return {name: first(f"test_{name}") for name in (*module.inputs, *module.outputs)}


def _numbered(stem: str) -> Iterable[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}_{number}"
        number += 1


def _constant(name: str, array: Any) -> Value:
    """All samples, one after the other; halves of floats are their bits in C."""
    flat: Array = np.ascontiguousarray(array).reshape(-1)
    stored = flat.view(np.uint16) if str(flat.dtype) in dtypes.HALF else flat
    return Value(name, stored.shape, str(stored.dtype), "const", stored)
