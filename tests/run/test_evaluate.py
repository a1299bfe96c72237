# SPDX-License-Identifier: Apache-2.0
"""Data of users' own: read from anything, refused with reasons, and measured against labels and expectations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.run import board_project
from microc.run.data.pictures import quantise_to_tensor
from microc.run.data.samples import read_samples
from microc.run.engine import HostKernels
from microc.run.verification import BoardKernels, classify, compare_answers, measure_closeness
from tests.support import digits


def tensor(name: str, dtype: str, shape: tuple[int, ...], scale: float | None = None, zero: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "label": f"serving/{name}",
        "dtype": dtype,
        "shape": list(shape),
        "scale": scale,
        "zero_point": zero,
    }


X = tensor("x", "int8", (1, 2, 2), 0.5, -3)
Y = tensor("y", "float32", (1, 2))
RNG = np.random.default_rng(4)


def saved(path: Path, array: Array) -> Path:
    np.save(path, array)
    return path


def test_shapes(tmp_path: Path) -> None:
    """The batch of one may be there or not, and rows may be flat."""
    stored = RNG.integers(-128, 127, (5, 1, 2, 2)).astype(np.int8)
    for array in (stored, stored[:, 0], stored.reshape(5, 4)):
        samples = read_samples([X], [Y], saved(tmp_path / "x.npy", array))
        assert np.array_equal(samples.inputs[0], stored) and samples.notes == () and len(samples) == 5
        assert samples.sample(3)[0].shape == (1, 2, 2)
    for wrong in ((5, 2), (5, 2, 3), (), (5, 1, 1, 2, 2)):
        with pytest.raises(UsageError, match="takes samples of shape Nx1x2x2"):
            read_samples([X], [Y], saved(tmp_path / "x.npy", np.zeros(wrong, np.int8)))


def test_reals_are_quantised(tmp_path: Path) -> None:
    """round(x / 0.5) - 3, half away from zero, saturated."""
    real = np.array([[[0.0, 0.25], [-0.25, 0.74]], [[100.0, -100.0], [0.76, -0.5]]])
    samples = read_samples([X], [Y], saved(tmp_path / "x.npy", real))
    assert samples.inputs[0].reshape(-1).tolist() == [-3, -2, -4, -2, 127, -128, -1, -4]
    assert "quantised by 0.5, -3" in samples.notes[0]
    assert quantise_to_tensor(np.array([1e30]), X).tolist() == [127]
    with pytest.raises(UsageError, match="NaN"):
        read_samples([X], [Y], saved(tmp_path / "x.npy", real * np.nan))


@pytest.mark.parametrize(
    ("given", "wanted", "allowed"),
    [
        ("uint8", tensor("x", "int8", (1, 2), 0.5), False),
        ("int64", tensor("x", "int8", (1, 2)), True),
        ("float64", tensor("x", "int32", (1, 2)), True),
        ("float64", tensor("x", "float32", (1, 2)), True),
        ("uint8", tensor("x", "float32", (1, 2)), True),
        ("int64", tensor("x", "bool", (1, 2)), False),
        ("complex64", tensor("x", "float32", (1, 2)), False),
    ],
)
def test_dtypes(tmp_path: Path, given: str, wanted: dict[str, Any], allowed: bool) -> None:
    path = saved(tmp_path / "x.npy", np.array([[1, 2], [3, 100]]).astype(given))
    if not allowed:
        with pytest.raises(UsageError, match=f"x: got {given}, expected {wanted['dtype']}"):
            read_samples([wanted], [Y], path)
        return
    samples = read_samples([wanted], [Y], path)
    assert samples.inputs[0].dtype == wanted["dtype"] and samples.inputs[0].reshape(-1).tolist() == [1, 2, 3, 100]
    assert samples.notes == (f"x: {given} taken as {wanted['dtype']}",)


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    integer = tensor("x", "int8", (1, 2))
    for array in (np.array([[1, 200]]), np.array([[0.5, 1.0]])):
        with pytest.raises(UsageError, match="expected int8"):
            read_samples([integer], [Y], saved(tmp_path / "x.npy", array))


def test_archives(tmp_path: Path) -> None:
    """Arrays by the names of tensors, ours or the model's, labels beside them; the only one for the only input."""
    path, other = tmp_path / "data.npz", tensor("z", "float32", (1, 1))
    x, z = np.zeros((3, 2, 2), np.int8), np.ones((3, 1), np.float32)
    arrays: dict[str, Any] = {"x": x, "serving/z": z, "kind": np.array([0, 1, 1])}
    np.savez(path, **arrays)
    samples = read_samples([X, other], [Y], path, "kind")
    assert samples.labels is not None and samples.labels.tolist() == [0, 1, 1] and len(samples.inputs) == 2
    with pytest.raises(UsageError, match=r"no labels 'sort'") as caught:
        read_samples([X, other], [Y], path, "sort")
    assert "kind" in caught.value.hint
    np.savez(path, images=x, kind=np.array([0, 1, 1]))
    assert len(read_samples([X], [Y], path, "kind")) == 3
    with pytest.raises(UsageError, match="no array is called 'x'"):
        read_samples([X], [Y], path)
    with pytest.raises(UsageError, match="no array is called 'x'"):
        read_samples([X, other], [Y], path, "kind")
    np.savez(path, x=x, kind=np.array([0, 1]))
    with pytest.raises(UsageError, match=r"numbers of samples differ.*x 3, labels 2"):
        read_samples([X], [Y], path, "kind")


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b,class,c,d\n0.5,1,0,-1,0\n1,1,2,1,1.5\n")
    samples = read_samples([X], [Y], path, "class")
    assert samples.labels is not None and samples.labels.tolist() == [0, 2]
    assert samples.inputs[0].reshape(2, 4).tolist() == [[-2, -1, -5, -3], [-1, -1, -1, 0]]
    path.write_text("1;2;3;4\n")
    assert read_samples([tensor("x", "int16", (4,))], [Y], path).inputs[0].tolist() == [[1, 2, 3, 4]]
    for text, words in (
        ("1,2\n3\n", "row 2 does"),
        ("a,b\n1,x\n", "row 2 does"),
        ("a,a\n1,2\n", "two columns"),
        ("", "is empty"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_samples([X], [Y], path)


def test_folders(tmp_path: Path) -> None:
    """A file for each sample; folders are classes, by number or in the order of their names."""
    for name, count in (("cat", 2), ("dog", 3)):
        (tmp_path / name).mkdir()
        for k in range(count):
            saved(tmp_path / name / f"{k}.npy", np.full((2, 2), k, np.int8))
    samples = read_samples([X], [Y], tmp_path)
    assert samples.labels is not None and samples.labels.tolist() == [0, 0, 1, 1, 1]
    assert samples.inputs[0][:, 0, 0, 0].tolist() == [0, 1, 0, 1, 2]
    (tmp_path / "cat").rename(tmp_path / "7")
    (tmp_path / "dog").rename(tmp_path / "3")
    labels = read_samples([X], [Y], tmp_path).labels
    assert labels is not None and labels.tolist() == [3, 3, 3, 7, 7]
    saved(tmp_path / "3" / "9.npy", np.zeros((2, 3), np.int8))
    with pytest.raises(UsageError, match=r"9\.npy: got int8"):
        read_samples([X], [Y], tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.npy files"):
        read_samples([X], [Y], tmp_path / "empty")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("hello")
    saved(tmp_path / "object.npy", np.array([{}], dtype=object))
    for name in ("text.npy", "object.npy"):
        with pytest.raises(UsageError, match="cannot read arrays"):
            read_samples([X], [Y], tmp_path / name)
    with pytest.raises(UsageError, match="cannot read"):
        read_samples([X], [Y], tmp_path / "absent.npy")
    path = saved(tmp_path / "x.npy", np.zeros((2, 4), np.int8))
    labels = saved(tmp_path / "labels.npy", np.array([0.5, 1.0]))
    with pytest.raises(UsageError, match="expected class numbers"):
        read_samples([X], [Y], path, str(labels))
    with pytest.raises(UsageError, match="got no samples"):
        read_samples([X], [Y], saved(path, np.zeros((0, 4), np.int8)))


def test_classes() -> None:
    scores = {"y": np.array([[[0.1, 0.9]], [[0.8, 0.2]], [[0.3, 0.7]], [[0.5, 0.5]]], np.float32)}
    found = classify(scores, {"y": Y}, np.array([1, 0, 0, 1]))
    assert (found.correct, found.total, found.accuracy) == (2, 4, 0.5)
    assert found.confusion.tolist() == [[1, 1], [1, 1]] and found.recall(0) == 0.5
    assert found.mistakes() == [(0, 1, 1), (1, 0, 1)]
    with pytest.raises(UsageError, match="label 2 is beyond the 2 classes"):
        classify(scores, {"y": Y}, np.array([1, 0, 2, 1]))
    with pytest.raises(UsageError, match="no output 'z'"):
        classify(scores, {"y": Y}, np.array([1, 0, 0, 1]), "z")
    label = tensor("label", "int64", (1,))
    both = {**scores, "label": np.array([[1], [5], [0], [1]])}
    found = classify(both, {"y": Y, "label": label}, np.array([1, 5, 1, 1]))
    assert (
        found.output == "label" and found.correct == 3 and found.confusion.shape == (6, 6) and found.recall(3) is None
    )
    with pytest.raises(UsageError, match="too large for a class number"):
        classify({"label": np.array([[1 << 40]])}, {"label": label}, np.array([1]))
    sure = tensor("p", "uint8", (1, 1), 1 / 256)
    found = classify({"p": np.array([[[127]], [[128]]], np.uint8)}, {"p": sure}, np.array([0, 1]))
    assert found.accuracy == 1


def test_closeness() -> None:
    stored = tensor("y", "int8", (2,), 0.5, 1)
    near = measure_closeness(np.array([[3, 1], [1, 5]], np.int8), stored, np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert near.rmse == 0.5 and near.largest == 1 and near.cosine == pytest.approx(3 / np.sqrt(10))
    same = measure_closeness(np.array([[3, 4]], np.int8), stored, np.array([[3, 4]]))
    assert (same.rmse, same.cosine) == (0, 1)
    assert measure_closeness(np.zeros((1, 2)), Y, np.ones((1, 2))).cosine is None


def test_a_board_on_the_test_set(tmp_path: Path) -> None:
    """The example's network has the accuracy that its reference states, and is as near to the float network as int8 allows."""
    project = board_project.open_project(microc.compile(digits.INT8, board="host").write(tmp_path / "out"))
    board_project.build_project(project)
    np.savez(tmp_path / "data.npz", image=digits.images(60), labels=digits.labels(60))
    float_network = microc.compile(digits.FLOAT)
    with np.load(digits.FOLDER / "digits_test.npz") as data:
        pixels = (data["images"][:60] / 16).astype(np.float32)
    shape = float_network.inputs[0]["shape"]
    np.save(tmp_path / "y.npy", np.concatenate([np.asarray(float_network(p.reshape(shape))) for p in pixels]))
    inputs, outputs = ([project.tensors[n] for n in project.manifest[k]] for k in ("inputs", "outputs"))
    samples = read_samples(inputs, outputs, tmp_path / "data.npz", "labels", tmp_path / "y.npy")
    with microc.Device(project) as device:
        library = board_project.build_host_library(project)
        answers = compare_answers(BoardKernels(device), HostKernels(library), samples)
    assert answers.differing_samples == () and answers.max_deviation == 0
    found = classify(answers.outputs, project.tensors, digits.labels(60))
    assert found.accuracy > 0.95 and found.confusion.sum() == 60
    near = measure_closeness(
        answers.outputs["probabilities"], project.tensors["probabilities"], samples.expected["probabilities"]
    )
    assert near.rmse < 0.05 and near.cosine is not None and near.cosine > 0.99
