# SPDX-License-Identifier: Apache-2.0
"""Firmware that learns, and the host: ``Device.learn``, files and banks of learned weights, ``microc learn``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.device.client import save_to_bank
from microc.errors import DeviceError, UsageError
from microc.run.data.samples import learned_tensors
from tests.support import digits
from tests.support.learning import RATE, RNG, STEPS, samples, two_layers

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
