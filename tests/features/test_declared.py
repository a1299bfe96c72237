# SPDX-License-Identifier: Apache-2.0
"""Pipelines in TOML files: what they say, and what they cannot say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.errors import MicrocError
from microc.features import Frames, Log, Pipeline, Spectrogram, mfcc, read
from microc.features.declared_features import STAGE_KINDS
from tests.features.sounds import int16, sound
from tests.features.test_joined import network

STAGES = """
sample_rate = 8000
input_dtype = "int16"
bands_first = true

[[stage]]
kind = "frames"
length = 256
step = 128

[[stage]]
kind = "spectrogram"
window = "hamming"

[[stage]]
kind = "log"
"""


def test_stages_and_presets(tmp_path: Path) -> None:
    path = tmp_path / "features.toml"
    path.write_text(STAGES)
    said = read(path)
    assert said.pipeline == Pipeline((Frames(256, 128), Spectrogram("hamming"), Log()), 8000, "int16")
    assert said.bands_first
    path.write_text('preset = "mfcc"\nn_mfcc = 10\nn_mels = 30\n')
    assert read(path).pipeline == mfcc(n_mfcc=10, n_mels=30)
    assert len(STAGE_KINDS) == 15


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ('preset = "mfc"', "'mfc'", "did you mean mfcc"),
        ('preset = "mfcc"\nn_mel = 40', "'n_mel'", "n_mels"),
        ('preset = "mfcc"\nn_mels = "40"', "Mel.bands", "integer"),
        ("[[stage]]\nlength = 3", "kind is missing", "frames"),
        ('[[stage]]\nkind = "frame"', "'frame'", "frames"),
        ('[[stage]]\nkind = "frames"\nlength = 480', "'step'", "keys"),
        ('[[stage]]\nkind = "fir"\ntaps = ["a"]', "Fir.taps", ""),
        ("stage = 3", "list of tables", "[[stage]]"),
        ("", "got no stages", ""),
        ("x = [", "not valid TOML", "docs/features.md"),
        ('input = 3\npreset = "mfcc"', "got 3, expected a string", "input"),
        ("sample_rat = 3", "'sample_rat'", "sample_rate"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, what: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "features.toml"
    path.write_text(text)
    with pytest.raises(MicrocError) as refused:
        read(path)
    assert what in refused.value.what and hint in refused.value.hint
    assert "features.toml" in refused.value.where


def test_files_that_are_none(tmp_path: Path) -> None:
    for content in (b"\xff\xfe", b"a" * (1 << 21)):
        (tmp_path / "features.toml").write_bytes(content)
        with pytest.raises(MicrocError):
            read(tmp_path / "features.toml")
    with pytest.raises(MicrocError, match="cannot read"):
        read(tmp_path / "nothing.toml")
    with pytest.raises(MicrocError, match="cannot read"):
        read(tmp_path)


def test_the_command_saves_both_as_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "features.toml").write_text('preset = "log_mel"\ninput_dtype = "int16"\nframe_step = 240\n')
    model = microc.save(network((1, 6, 40)), tmp_path / "net.mcg")
    words = ["import", str(model), "--features", str(tmp_path / "features.toml"), "-o", str(tmp_path / "both.mcg")]
    assert main(words) == 0
    assert "samples  int16 1x1680" in capsys.readouterr().out
    front, q = read(tmp_path / "features.toml").pipeline, int16(sound(0.105))
    got = np.asarray(microc.compile(tmp_path / "both.mcg")(q[None]))
    np.testing.assert_allclose(got[0], front(q), rtol=1e-6)
    (tmp_path / "features.toml").write_text('preset = "log_mel"\nframe_stop = 240\n')
    assert main(words) == 2
    assert "did you mean frame_step" in capsys.readouterr().err
