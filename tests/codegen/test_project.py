# SPDX-License-Identifier: Apache-2.0
"""Whole projects of a real network: the same bytes everywhere, clean under every warning, sane memory, safe writing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from microc.codegen.c.source import network_files, shared_files
from microc.codegen.output_files import replace_atomically, write_tree
from microc.codegen.project.firmware import project_files
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.errors import OutputError
from microc.module import Module
from microc.run.desktop.library import Library
from microc.run.desktop.load import build_library
from microc.target import target_for
from tests.support.native import WARNINGS

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
OURS = '{"schema_version": 2, "microc": "0.1.0"}'
MODELS = ("digits_int8.tflite", "digits_float.onnx", "digits_qdq.onnx")


@pytest.fixture(scope="module", params=MODELS)
def module(request: pytest.FixtureRequest) -> Module:
    return compile_model(DIGITS / request.param, target_for("cortex-m4"), Options(name="digits"))


@pytest.fixture(scope="module")
def library(module: Module) -> Library:
    return build_library(shared_files(module, "test"))


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def images(library: Library) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The test images in the input's shape and dtype."""
    tensor = library.inputs[0]
    with np.load(DIGITS / "digits_test.npz") as data:
        x = next(data[name] for name in data.files if data[name].ndim > 1)[:50].astype(np.float32)
    if tensor["dtype"] != "float32":
        info = np.iinfo(tensor["dtype"])
        x = np.clip(np.rint(x / tensor["scale"]) + tensor["zero_point"], info.min, info.max)
    return np.asarray(x.reshape(-1, *tensor["shape"]).astype(tensor["dtype"]))


# ---------------------------------------------------------------- determinism

_COMPILE = """
import hashlib, sys
from pathlib import Path
from microc.codegen.project.firmware import project_files
from microc.device.boards import load_board
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
board = load_board("mps2-an386")
for path in map(Path, sys.argv[1:]):
    files = project_files((compile_model(path, board.target, Options()),), board, "test")
    for name in sorted(files):
        data = files[name] if isinstance(files[name], bytes) else files[name].encode()
        sys.stdout.write(path.name + " " + name + " " + hashlib.sha256(data).hexdigest() + "\\n")
"""


_VERSIONS = """
import sys, jinja2, numpy, onnx, tflite
from importlib import metadata
names = ("numpy", "ml-dtypes", "onnx", "tflite", "flatbuffers", "jinja2")
print("%d.%d" % sys.version_info[:2], *(metadata.version(name) for name in names))
"""


def test_the_same_bytes_everywhere(tmp_path: Path) -> None:
    """Another folder, another name of the path, another hash seed: not one byte changes."""
    listings = []
    for number, seed in enumerate(("0", "4711")):
        folder = tmp_path / f"place{number}"
        folder.mkdir()
        for model in MODELS:
            shutil.copyfile(DIGITS / model, folder / model)
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root, "TZ": f"UTC+{number}"}
        done = subprocess.run(
            [sys.executable, "-c", _COMPILE, *(str(folder / model) for model in MODELS)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        listings.append(done.stdout)
    assert listings[0] == listings[1] and listings[0].count(" model.c ") == len(MODELS)


PYTHONS = tuple(
    path
    for path in (
        *os.environ.get("MICROC_PYTHONS", "").split(os.pathsep),
        *(shutil.which(f"python3.{minor}") for minor in range(11, 15)),
    )
    if path
)
"""Other interpreters: those that MICROC_PYTHONS names, and those on the path."""


def _told(python: str, environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """What an interpreter says, under a umask of its own."""
    return subprocess.run(
        [python, "-c", *words], env=environment, capture_output=True, text=True, umask=0o027, check=False
    )


def test_the_same_bytes_on_every_python() -> None:
    """Interpreters of other versions with the same packages, another locale, umask, hash seed and zone."""
    root = str(Path(__file__).resolve().parents[2])
    listings: dict[str, str] = {}
    seen: dict[str, str] = {}
    for number, python in enumerate((sys.executable, *PYTHONS)):
        environment = {**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": str(number), "TZ": f"UTC-{number}"}
        environment |= {"LC_ALL": "tr_TR.UTF-8" if number else "C", "PYTHONUTF8": "0"}

        version = _told(python, environment, _VERSIONS)
        if version.returncode or version.stdout in seen.values():
            continue
        seen[python] = version.stdout
        done = _told(python, environment, _COMPILE, str(DIGITS / MODELS[0]))
        assert done.returncode == 0, done.stderr
        listings[python] = done.stdout
    if len(listings) < 2:
        pytest.skip("no other Python here with microc's packages: name some in MICROC_PYTHONS")
    packages = {text.partition(" ")[2] for text in seen.values()}
    kept = [
        "".join(line for line in text.splitlines(True) if len(packages) == 1 or "sbom" not in line)
        for text in listings.values()
    ]
    assert len(set(kept)) == 1, f"they differ: {list(listings)}"


def test_no_machine_in_the_files(module: Module) -> None:
    files = project_files((module,), load_board("mps2-an386"), "test")
    for name, content in files.items():
        text = content.decode() if isinstance(content, bytes) else content
        for trace in (str(DIGITS.parent), str(Path.home()) + "/", os.uname().nodename):
            found = re.search(rf"(?<!\w){re.escape(trace)}(?!\w)" if trace.isalnum() else re.escape(trace), text)
            assert found is None, f"{name} mentions {trace}"


# ---------------------------------------------------------------- the C itself


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_no_warnings(module: Module, compiler: str, level: str, tmp_path: Path) -> None:
    write(tmp_path, shared_files(module, "test"))
    for name in ("model.c", "model_data.c", "shared.c"):
        argv = [compiler, *WARNINGS, "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wvla", level, "-c", name]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]


def test_no_forbidden_words(module: Module) -> None:
    """No heap, no variable-length arrays, no recursion: a kernel calls helpers only, the rest calls kernels."""
    text = network_files(module, "test")["model.c"]
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(malloc|calloc|realloc|free|alloca|printf|goto|setjmp)\b", code)
    bodies = dict(re.findall(r"^[a-z][\w *]*?\b(\w+)\([^;{]*\)\n\{\n(.*?)^\}", code, flags=re.MULTILINE | re.DOTALL))
    assert len(bodies) > 3
    calls = {name: {other for other in bodies if re.search(rf"\b{other}\(", body)} for name, body in bodies.items()}

    def depth(name: str, path: tuple[str, ...] = ()) -> int:
        assert name not in path, f"{name} calls itself"
        return 1 + max((depth(other, (*path, name)) for other in calls[name]), default=0)

    assert max(depth(name) for name in calls) <= 5
    for body in bodies.values():  # arrays only of literal size
        assert not re.search(r"^\s+\w+ \w+\[[^\]]*[a-z][^\]]*\];", body, flags=re.MULTILINE)


_MAIN = """
#include <stdio.h>
#include "model.h"
int microc_run(void *arena, const void *const *inputs, void *const *outputs);
void microc_reset(void *arena);
int main(int argc, char **argv)
{
    static uint64_t arena[(DIGITS_ARENA_SIZE + 7) / 8 + 1];
    static uint64_t in[(IN_BYTES + 7) / 8];
    static uint64_t out[(OUT_BYTES + 7) / 8];
    const void *const inputs[1] = {in};
    void *const outputs[1] = {out};
    (void)argc;
    (void)argv;
    microc_reset(arena);
    while (fread(in, 1, IN_BYTES, stdin) == IN_BYTES) {
        if (microc_run(arena, inputs, outputs) != 0 || fwrite(out, 1, OUT_BYTES, stdout) != OUT_BYTES) {
            return 1;
        }
    }
    return 0;
}
"""


def test_sanitized_equals_plain(module: Module, library: Library, tmp_path: Path) -> None:
    """The network under address and undefined-behaviour sanitizers, on real images, beside the ordinary build."""
    write(tmp_path, {**shared_files(module, "test"), "main.c": _MAIN})
    sizes = [f"-DIN_BYTES={library.inputs[0]['bytes']}", f"-DOUT_BYTES={library.outputs[0]['bytes']}"]
    flags = ["-O0", "-std=c99", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-ffp-contract=off"]
    sources = ["main.c", "shared.c", "model.c", "model_data.c"]
    built = subprocess.run(
        ["gcc", *flags, *sizes, *sources, "-lm", "-o", "net"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr[:3000]
    batch = images(library)
    done = subprocess.run([str(tmp_path / "net")], input=batch.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[:3000]
    tensor = library.outputs[0]
    got = np.frombuffer(done.stdout, tensor["dtype"]).reshape(-1, *tensor["shape"])
    np.testing.assert_array_equal(got, np.stack([library(image) for image in batch]))
    assert len(np.unique(got)) > 1


# ---------------------------------------------------------------- writing


def test_a_project_is_written_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_tree(folder, {"manifest.json": OURS, "old.c": "", "sub/x.bin": b"\0"})
    assert (folder / "sub" / "x.bin").read_bytes() == b"\0"
    write_tree(folder, {"manifest.json": OURS, "new.c": ""})
    assert sorted(p.name for p in folder.iterdir()) == ["manifest.json", "new.c"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("thesis", "file"):
        with pytest.raises(OutputError) as caught:
            write_tree(tmp_path / name, {"manifest.json": OURS})
        assert caught.value.hint
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "thesis"]


def test_an_empty_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_tree(tmp_path / "out", {"manifest.json": OURS})
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_nothing_half_written(tmp_path: Path) -> None:
    """A file in the way in the middle of the work: the old project stays as it was, and no traces remain."""
    folder = tmp_path / "out"
    write_tree(folder, {"manifest.json": OURS, "a.c": "old"})
    with pytest.raises(OutputError):
        write_tree(folder, {"manifest.json": OURS, "a.c": "new", "a.c/b": "impossible"})
    assert (folder / "a.c").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_replacing_a_file(tmp_path: Path) -> None:
    target = tmp_path / "net.so"
    target.write_text("old")
    with pytest.raises(RuntimeError), replace_atomically(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    with replace_atomically(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["net.so"]
    with pytest.raises(OutputError), replace_atomically(target / "below"):
        pass
