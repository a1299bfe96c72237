# SPDX-License-Identifier: Apache-2.0
"""Options are one table: keywords, flags, help, the page and refusals derive from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from microc.cli import main
from microc.cli.parser import parse_command_line
from microc.compiler.options import LATE, OPTIONS, Bound, Options, make_options
from microc.errors import UsageError
from microc.reports.reference_tables import compilation_option_rows, options_markdown
from microc.transform.streaming import ALLOWED

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "name": ["kws"], "input_shapes": ["x=1,3,8", "*=2,2"], "input_values": ["sr=16000", "a=b=[[1,2.5]]", "go=true"],
    "inputs": ["a,b", '"c,d"'], "outputs": ["e"],
    "input_dtype": ["float32"], "input_layout": ["x=NCHW"], "output_dtype": ["y=int8", "z=uint8"], "output_layout": ["NHWC"],
    "input_normalize": ["127.5 64", "x=1,2,3 4,5,6"], "input_colour": ["bgr"], "input_frame": ["x=120x160"],
    "input_crop": ["96x96"], "input_resize": ["nearest"],
    "plugins": [str(ROOT / "examples" / "custom_operator" / "operators.py")], "bounds": ["n=4", "m=8:64:8"],
    "opt_level": ["1"], "disabled": ["fuse", "layout,padding"], "io_in_arena": ["caller"], "protocol": ["mlperf"],
    "requantize": ["fixed"], "hybrid": ["dynamic"], "rounding": ["single"], "optimize": ["size"], "flash": ["64K"],
    "ram": ["30000"], "stream": ["1"], "hop": ["2"], "stream_allow": ["window,lookahead"], "dump": ["folder"], "cache": [],
    "shipped": [], "cores": ["2"],
    "threads": ["2"], "bind_threads": [],
    "tuned": ["tuned.jsonl"], "plan": ["plan.json"], "math": ["fast"], "weight_dtype": ["float16"],
    "self_test": ["samples.npz"], "relocatable": [], "state": ["past=present", "a=b=c"], "external": ["acme=folder"],
    "external_choice": ["all"], "code_in_ram": [],
    "learn": ["head.toml"],
    "rename": ["x=first", "a=b=second"], "class_names": [str(ROOT / "tests" / "data" / "colours.txt")],
}  # fmt: skip
VALUES = {
    "name": "kws", "input_shapes": {"x": (1, 3, 8), "*": (2, 2)},
    "input_values": {"sr": 16000, "a=b": ((1, 2.5),), "go": True}, "inputs": ("a", "b", "c,d"), "outputs": ("e",),
    "input_dtype": {"*": "float32"}, "input_layout": {"x": "NCHW"}, "output_dtype": {"y": "int8", "z": "uint8"},
    "input_normalize": {"*": ((127.5,), (64.0,)), "x": ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))}, "input_colour": {"*": "bgr"},
    "input_frame": {"x": (120, 160)}, "input_crop": {"*": (96, 96)}, "input_resize": {"*": "nearest"},
    "output_layout": {"*": "NHWC"}, "bounds": {"n": Bound(4), "m": Bound(64, 8, 8)}, "opt_level": 1,
    "disabled": frozenset({"fuse", "layout", "padding"}), "io_in_arena": False, "protocol": "mlperf", "requantize": "fixed",
    "hybrid": "dynamic", "rounding": "single", "optimize": "size", "flash": 65536, "ram": 30000, "stream": {"*": 1}, "hop": 2,
    "stream_allow": frozenset(LATE), "dump": Path("folder"), "cache": False, "shipped": False,
    "threads": 2, "bind_threads": True,
    "cores": 2, "tuned": Path("tuned.jsonl"), "plan": Path("plan.json"), "math": "fast", "weight_dtype": "float16",
    "self_test": Path("samples.npz"), "relocatable": True, "state": {"past": "present", "a=b": "c"},
    "external": {"acme": "folder"}, "external_choice": "all", "code_in_ram": True,
    "learn": Path("head.toml"),
    "rename": {"x": "first", "a=b": "second"}, "class_names": ("red", "green"),
}  # fmt: skip


def parsed(*words: str) -> dict[str, object]:
    return parse_command_line(["compile", "m.tflite", "-o", "out", *words])[1].options


def test_every_flag_sets_its_keyword() -> None:
    assert set(WORDS) == {name for name, option in OPTIONS.items() if option.flag}
    said = [word for name, words in WORDS.items() for each in words for word in (OPTIONS[name].flag, *each.split(" "))]
    said += [OPTIONS[name].flag for name, words in WORDS.items() if not words]
    chosen = make_options(**parsed(*said))
    assert {name: getattr(chosen, name) for name in VALUES} == VALUES and len(chosen.plugins) == 1
    assert parsed() == {} and make_options(**parsed()) == Options()


@pytest.mark.parametrize(
    ("flag", "word", "said"),
    [
        ("--input-shape", "1,3", r"not the shape of an input\n.*write NAME=1,3,8"),
        ("--bound", "n=", "not the range of a dimension"),
        ("--input-value", "sr=fast", r"not an input and its value\n.*write NAME=16000"),
        ("--flash", "64Q", "not a number of bytes"),
        ("--hop", "x", "not a non-negative integer"),
        ("--stream", "x=y", "not an axis number"),
        ("--input-frame", "120", r"not an image size\n.*write NAME=120x160"),
        ("--input-normalize", "1 x", "not a mean and a standard deviation"),
        ("--state", "past", r"is not an input and the output that updates it\n.*write INPUT=OUTPUT"),
        ("--rename", "x=", r"is not a renaming\n.*write NAME=NEW"),
        ("--class-names", "missing.txt", "cannot read missing.txt"),
        ("--optimize", "fast", "is no choice for --optimize"),
    ],
)
def test_a_wrong_word_is_refused_by_its_flag(flag: str, word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parsed(flag, *word.split(" "))
    assert flag in caught.value.what


def test_what_streaming_allows_is_what_the_pass_knows() -> None:
    assert set(LATE) == set(ALLOWED)
    with pytest.raises(UsageError, match="cannot be"):
        make_options(stream=1, stream_allow="future")


def test_help_is_a_short_noun_phrase() -> None:
    long = [name for name, option in OPTIONS.items() if len(option.help) > 80]
    assert not long, f"conditions and exceptions belong into details: {long}"
    assert not [name for name, option in OPTIONS.items() if option.help.endswith(".") or "; " in option.help]
    assert all(option.details[-1:] in ("", ".") for option in OPTIONS.values())


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == options_markdown(), "write it again: make docs"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    assert "--requantize float|fixed" in capsys.readouterr().out
    assert main(["options", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["options"]
    assert [row["name"] for row in found] == list(OPTIONS) == [row.name for row in compilation_option_rows()]
    assert all(row["help"] and row["group"] for row in found)
