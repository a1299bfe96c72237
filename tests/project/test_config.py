# SPDX-License-Identifier: Apache-2.0
"""``microc.toml``: every option under its documented name, mistakes named with their key, nothing that a stranger's file does."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from microc.base import operating_system
from microc.base.file_access import TRUST, is_trusted
from microc.compiler import option_values
from microc.compiler.options import OPTIONS, RUN, WRITTEN, Options, make_options, option_field
from microc.errors import OutputError, UsageError
from microc.project.config import NAMES, check_config_owner, find_config, format_config, read_config

SPOKEN: dict[str, tuple[str, Any]] = {
    "name": ('"net"', "net"),
    "input_shapes": ("{ x = [1, 3] }", {"x": (1, 3)}),
    "input_values": ("{ sr = 16000, mask = [true, false] }", {"sr": 16000, "mask": (True, False)}),
    "inputs": ('["a,b", "c"]', ("a,b", "c")),
    "outputs": ('"a, c"', ("a", "c")),
    "input_dtype": ('"float32"', {"*": "float32"}),
    "input_layout": ('{ x = "NCHW" }', {"x": "NCHW"}),
    "input_normalize": ('["x=1 2", "3 4"]', {"x": ((1.0,), (2.0,)), "*": ((3.0,), (4.0,))}),
    "input_colour": ('"bgr"', {"*": "bgr"}),
    "input_frame": ('"120x160"', {"*": (120, 160)}),
    "input_crop": ("{ x = [8, 9] }", {"x": (8, 9)}),
    "input_resize": ('"nearest"', {"*": "nearest"}),
    "output_dtype": ('"y=int8"', {"y": "int8"}),
    "output_layout": ('"NHWC"', {"*": "NHWC"}),
    "state": ('["past=present"]', {"past": "present"}),
    "rename": ('["x=y"]', {"x": "y"}),
    "class_names": ('["cat", "dog"]', ("cat", "dog")),
    "bounds": ('["a=4", "b=8:64:8"]', "a 1 4 1 b 8 64 8"),
    "opt_level": ("3", 3),
    "disabled": ('["fuse"]', frozenset({"fuse"})),
    "required": ('["fuse"]', frozenset({"fuse"})),
    "io_in_arena": ('"caller"', False),
    "threads": ("2", 2),
    "bind_threads": ("true", True),
    "cores": ("2", 2),
    "protocol": ('"rpc"', "rpc"),
    "requantize": ('"fixed"', "fixed"),
    "hybrid": ('"dynamic"', "dynamic"),
    "rounding": ('"litert"', "litert"),
    "math": ('"fast"', "fast"),
    "weight_dtype": ('"float16"', "float16"),
    "optimize": ('"size"', "size"),
    "flash": ('"64K"', 65536),
    "ram": ("30720", 30720),
    "stream": ("1", {"*": 1}),
    "hop": ("2", 2),
    "stream_allow": ('"window"', frozenset({"window"})),
    "relocatable": ("true", True),
    "shipped": ("false", False),
    "external_choice": ('"all"', "all"),
    "code_in_ram": ("true", True),
    "cache": ("false", False),
}
FILES = ("learn", "plugins", "tuned", "plan", "dump", "self_test")
FOLDERS = ("external",)
OBJECTS = ("example_inputs", "passes", "instruments", "schedules")


def written(folder: Path, text: str) -> Path:
    path = folder / "microc.toml"
    path.write_text(text, encoding="utf-8")
    return path


def plain(value: Any) -> Any:
    if isinstance(value, dict) and value and hasattr(next(iter(value.values())), "step"):
        return " ".join(f"{name} {b.minimum} {b.maximum} {b.step}" for name, b in value.items())
    return value


def test_every_option_is_here() -> None:
    assert {*SPOKEN, *FILES, *FOLDERS, *OBJECTS} == set(OPTIONS) == set(NAMES.values())


@pytest.mark.parametrize("name", SPOKEN)
def test_an_option_stands_under_both_names(name: str, tmp_path: Path) -> None:
    text, value = SPOKEN[name]
    flag = OPTIONS[name].flag.lstrip("-") or name
    for spelled in {name, flag} - {"no-cache", "no-shipped"}:
        found = read_config(written(tmp_path, f"[options]\n{spelled} = {text}\n"))
        assert plain(found.options[name]) == value and list(found.options) == [name]
        again = read_config(written(tmp_path, format_config("m", "host", found.options)))
        assert again.options == found.options, "what is written reads back"


@pytest.mark.parametrize("name", FILES)
def test_files_lie_beside_the_file(name: str, tmp_path: Path) -> None:
    found = read_config(written(tmp_path, f'[options]\n{name} = "a/b"\n'))
    path = tmp_path / "a" / "b"
    assert found.options[name] == ((path,) if name == "plugins" else path)
    assert (path in found.sources) == (name != "dump")


def test_libraries_lie_beside_the_file_too(tmp_path: Path) -> None:
    for text in ('{ cmsis-nn = "../CMSIS-NN", cblas = "" }', '["cmsis-nn=../CMSIS-NN", "cblas"]'):
        found = read_config(written(tmp_path, f"[options]\nexternal = {text}\n"))
        assert found.options["external"] == {"cmsis-nn": str(tmp_path / "../CMSIS-NN"), "cblas": ""}
    found = read_config(written(tmp_path, '[options]\nexternal = "ethos-u=ethos-u55-128,driver=drv"\n'))
    assert found.options["external"] == {"ethos-u": f"ethos-u55-128,driver={tmp_path / 'drv'}"}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_python_do_not(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(written(tmp_path, f'[options]\n{name} = ["x"]\n'))
    assert caught.value.hint and f"options.{name}" in caught.value.where


def test_names_of_classes_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert read_config(written(tmp_path, '[options]\nclass-names = "labels.txt"\n')).options["class_names"] == (
        "cat",
        "dog",
    )
    with pytest.raises(UsageError):
        read_config(written(tmp_path, '[options]\nclass-names = "absent.txt"\n'))


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    found = read_config(written(tmp_path, ""))
    assert (found.models, found.board, dict(found.options)) == ((), "", {}) and found.folder == tmp_path / "firmware"
    assert make_options(**found.options) == Options()


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ('modle = "x"', "", "did you mean model?"),
        ('ram = "30K"', "", "under [options]"),
        ('input-shape = "x=1"', "", "under [options]"),
        ('[options]\noptimise = "size"', "", "did you mean optimize?"),
        ('[options]\noptimize = "fast"', "options.optimize", "balanced"),
        ('[options]\nram = "30Q"', "options.ram", "microc options"),
        ("[options]\nram = -5", "options.ram", "bytes"),
        ("[options]\nram = true", "options.ram", "bytes"),
        ("[options]\nram = 1\nhop = []", "options.hop", "frames"),
        ('[options]\nio = "arena"\nio_in_arena = true', "options.io_in_arena", ""),
        ("[options]\ntuned = 5", "options.tuned", "the path of a file"),
        ("[options]\ninput_shapes = [1, 2]", "options.input_shapes", "a dict with names as keys"),
        ("options = 5", "options", "a table"),
        ("model = 5", "model", "the path of a file"),
        ('model = ""', "model", "the path of a file"),
        ("model = [5]", "model", "the path of a file"),
        ("board = []", "board", "microc boards"),
        ('folder = "/tmp"', "folder", "below that of"),
        ('folder = "../x"', "folder", "below that of"),
        ('folder = "."', "folder", "below that of"),
        ("model = ", "", "docs/project.md"),
        ("x = " + "[" * 5000 + "]" * 5000, "", "docs/project.md"),
    ],
)
def test_a_mistake_is_named(text: str, where: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_config(written(tmp_path, text + "\n"))
    assert caught.value.where.endswith(where) and hint in caught.value.hint
    assert str(tmp_path / "microc.toml") in caught.value.where


def test_no_file_and_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        read_config(tmp_path / "microc.toml")
    (tmp_path / "microc.toml").write_bytes(b"model = '\xff'\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        read_config(tmp_path / "microc.toml")
    (tmp_path / "microc.toml").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(OutputError, match="more than"):
        read_config(tmp_path / "microc.toml")


def test_names_are_data(tmp_path: Path) -> None:
    """What is written of strange names reads back as they are, and adds no key."""
    name = 'x"\n[options]\nplugins = "evil.py"\n\\\x7f'
    found = read_config(written(tmp_path, format_config(name, name, {"input_dtype": {name: "int8"}})))
    assert found.models == (tmp_path / name,) and found.board == name and found.options["input_dtype"] == {name: "int8"}
    assert set(tomllib.loads((tmp_path / "microc.toml").read_text())["options"]) == {"input_dtype"}


def test_found_upwards_but_not_in_a_folder_of_everybody(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_config(below) is None
    path = written(tmp_path, "")
    assert find_config(below) == path == find_config(tmp_path)
    os.chmod(tmp_path, 0o777)
    assert find_config(below) is None and find_config(tmp_path) == path


def test_trust_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRUST, raising=False)
    assert not is_trusted(tmp_path)
    monkeypatch.setenv(TRUST, os.pathsep.join(("/nowhere", str(tmp_path))))
    assert is_trusted(tmp_path) and not is_trusted(tmp_path / "below")


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.path == WRITTEN])
def test_what_is_written_stays_below_the_file(name: str, tmp_path: Path) -> None:
    """Up, away, and through links: of every option that declares that it is written."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "link").symlink_to(tmp_path)
    (own / "circle").symlink_to("circle")
    for place in ("..", ".", "", "../x", "a/../../x", str(tmp_path / "x"), "/x", "link/x", "link", "circle"):
        with pytest.raises(UsageError) as caught:
            read_config(written(own, f'[options]\n{name} = "{place}"\n'))
        assert f"options.{name}" in caught.value.where and "outside of the folder" in caught.value.what, place
    found = read_config(written(own, f'[options]\n{name} = "~/x"\n'))
    assert found.options[name] == own / "~" / "x", "no home is meant"


def test_an_option_that_names_a_file_says_what_is_done_with_it() -> None:
    for word in (
        Path,
        option_values.parse_path,
        option_values.read_text_lines,
        option_values.parse_backend_and_library,
    ):
        with pytest.raises(TypeError, match="declares path"):
            option_field(None, option_values.validated_optional_path, "help", flag="--new", word=word)
    assert {n for n, o in OPTIONS.items() if o.path == WRITTEN} == {"dump", "plan"}
    assert {n for n, o in OPTIONS.items() if o.path == RUN} == {"plugins", "external"}


@pytest.mark.parametrize("name", ["tuned", "plan", "plugins", "class_names", "external"])
def test_no_path_has_a_zero(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_config(written(tmp_path, f'[options]\n{name} = "cblas=\\u0000"\n'))


@pytest.mark.skipif(os.name != "posix", reason="needs owners")
def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are the project's folder and the board file that it names, which run and which nobody named either."""
    monkeypatch.delenv(TRUST, raising=False)
    (tmp_path / "b.toml").write_text("")
    (tmp_path / "firmware").mkdir()
    (tmp_path / "firmware" / "Makefile").write_text("")
    found = read_config(written(tmp_path, 'board = "b.toml"\n'))
    check_config_owner(found)
    for path in (found.path, tmp_path / "b.toml", tmp_path / "firmware" / "Makefile", tmp_path / "firmware"):
        mode = path.stat().st_mode
        os.chmod(path, 0o777)
        with pytest.raises(UsageError) as caught:
            check_config_owner(found)
        assert TRUST in caught.value.hint and str(tmp_path) in caught.value.hint and path.name in str(caught.value)
        os.chmod(path, mode)
    monkeypatch.setattr(operating_system, "_trusted_users", lambda: frozenset({os.getuid() + 1}))
    with pytest.raises(UsageError, match="belongs to"):
        check_config_owner(found)
    monkeypatch.setenv(TRUST, str(tmp_path))
    check_config_owner(found)
