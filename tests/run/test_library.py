# SPDX-License-Identifier: Apache-2.0
"""Calls of a desktop library: arrays are read where they lie, results are the caller's, many samples take one call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.compiler.api import Program
from microc.errors import ModelError, UsageError
from tests.frontend.onnx_model import node, proto
from tests.support import digits


@pytest.fixture(scope="module")
def library() -> microc.Library:
    return microc.compile(digits.INT8)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> microc.Library:
    """Two inputs, two outputs, and a size that varies."""
    nodes = [node("Add", ["a", "b"], ["sum"]), node("Sub", ["a", "b"], ["difference"])]
    path = tmp_path_factory.mktemp("two") / "two.onnx"
    path.write_bytes(proto(nodes, {"a": ["n", 3], "b": ["n", 3]}, outputs=("sum", "difference")).SerializeToString())
    return microc.compile(path, bounds={"n": 8})


def test_results_are_the_callers(library: microc.Library) -> None:
    first, second = digits.images(2)
    kept = np.asarray(library(first))
    before = kept.copy()
    library(second)
    library.set_input(0, second)
    library.run()
    assert np.array_equal(kept, before)


def test_arrays_of_any_order_and_place(library: microc.Library) -> None:
    """Read-only, strided, unaligned and foreign ones give what copies of them give."""
    image = digits.images(1)[0]
    wanted = np.asarray(library(image))
    fixed = image.copy()
    fixed.flags.writeable = False
    strided = np.repeat(image, 2, axis=2)[:, :, ::2]
    assert not strided.flags.c_contiguous
    for array in (fixed, strided, memoryview(image), image.view(type("Own", (np.ndarray,), {}))):
        assert np.array_equal(np.asarray(library(array)), wanted)


def test_unaligned_floats(two: microc.Library) -> None:
    raw = np.arange(25, dtype=np.uint8)
    x = raw[1:].view(np.float32).reshape(2, 3)
    assert not x.flags.aligned
    total, difference = two(x, x)
    assert np.array_equal(total, x + x)
    assert not difference.any()


def test_steps_go_on_with_the_last_call(library: microc.Library) -> None:
    first, second = digits.images(2)
    given = first.copy()
    wanted = np.asarray(library(given)).copy()
    assert np.array_equal(library.get_output(0), wanted)
    given[:] = second  # the library keeps a copy by now
    library.run()
    assert np.array_equal(library.get_output(0), wanted)
    library.set_input(0, second)
    library.run()
    assert np.array_equal(library.get_output(0), np.asarray(library(second)))
    assert np.array_equal(given, second)


def test_a_batch_is_its_samples(library: microc.Library, two: microc.Library) -> None:
    images = np.stack(list(digits.images(20)))
    wanted = np.stack([np.asarray(library(image)) for image in images])
    assert np.array_equal(np.asarray(library.batch(images)), wanted)
    assert np.array_equal(np.asarray(library.batch(images[::-3])), wanted[::-3])
    a, b = np.random.default_rng(0).standard_normal((2, 5, 4, 3), np.float32)
    total, difference = two.batch(a, b)
    assert np.array_equal(total, a + b)
    assert np.array_equal(difference, a - b)


def test_batches_of_none_and_one(library: microc.Library) -> None:
    image = digits.images(1)[0]
    shape = np.asarray(library(image)).shape
    assert np.asarray(library.batch(np.empty((0, *image.shape), image.dtype))).shape == (0, *shape)
    assert np.array_equal(np.asarray(library.batch(image[None]))[0], np.asarray(library(image)))


def test_wrong_batches(library: microc.Library, two: microc.Library) -> None:
    image = digits.images(1)[0]
    with pytest.raises(
        UsageError, match=r"takes samples of shape \(1, 8, 8, 1\); got an array of shape \(1, 8, 8, 1\)"
    ):
        library.batch(image)
    with pytest.raises(UsageError, match="got dtype float32, expected int8"):
        library.batch(image[None].astype(np.float32))
    with pytest.raises(UsageError, match="takes 1 inputs, 0 were given"):
        library.batch()
    with pytest.raises(UsageError, match="different numbers of samples"):
        two.batch(np.zeros((2, 4, 3), np.float32), np.zeros((3, 4, 3), np.float32))
    with pytest.raises(UsageError, match="different numbers of samples"):
        two.batch(np.float32(1), np.zeros((3, 4, 3), np.float32))


def test_libraries_of_earlier_versions(library: microc.Library, tmp_path: Path) -> None:
    """They have no entry point for batches."""
    old = tmp_path / "old.so"
    old.write_bytes(library.path.read_bytes().replace(b"microc_run_batch", b"microc_run_other"))
    with pytest.raises(ModelError, match="another version"):
        microc.load_library(old)


def test_programs_of_boards_have_batches(library: microc.Library) -> None:
    program = microc.compile(digits.INT8, board="mps2-an386")
    assert isinstance(program, Program)
    images = np.stack(list(digits.images(3)))
    assert np.array_equal(np.asarray(program.library().batch(images)), np.asarray(library.batch(images)))
