# SPDX-License-Identifier: Apache-2.0
"""The command line: results on stdout, refusals on stderr, exit codes, never a traceback."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.cli import catalogue, main
from microc.cli.parser import COMMANDS, parse_command_line
from microc.errors import InternalError
from tests.device.smoke import needs
from tests.support import digits

MODEL = str(digits.INT8)


@dataclass(frozen=True)
class Said:
    """What one command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def microc(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: object) -> Said:
        capsys.readouterr()
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        if code not in (0, 4, 5):
            assert said.err.startswith("error[E")
        return Said(code, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built project for the host board."""
    folder = tmp_path_factory.mktemp("cli") / "digits"
    assert main(["compile", MODEL, "-o", str(folder), "-q"]) == 0
    assert main(["build", str(folder), "-q"]) == 0
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, digits.images(1)[0])
    return path


def test_help_is_complete_and_loads_nothing_heavy() -> None:
    """What makes the start instant: no library of arrays, models or templates is imported for it."""
    argv = [sys.executable, "-X", "importtime", "-m", "microc", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in (*COMMANDS, "exit codes", "70", "130"))
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert loaded.isdisjoint({"numpy", "onnx", "tflite", "jinja2", "serial", "jsonschema", "rich", "torch", "sklearn"})


def test_a_compilation_imports_what_its_network_needs(tmp_path: Path) -> None:
    """No other command, no code of others, no emulator, no readers of other formats, nothing of streams and open sizes."""
    argv = [sys.executable, "-X", "importtime", "-m", "microc", "compile", MODEL, "-o", str(tmp_path / "digits")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    ours = {name for name in loaded if name.startswith("microc.")}
    assert "microc.compiler.pipeline" in ours and len(ours) < 630, len(ours)
    others = ("cli.verification", "external.blas", "external.cmsis_nn", "external.ethos_u", "device.emulators", "frontend.onnx",
              "transform.streaming", "compiler.sizes")  # fmt: skip
    assert not [name for name in ours if name.removeprefix("microc.").startswith(others)]
    assert len([name for name in loaded if name.startswith("tflite.")]) < 30, "the tables that the network has"


def test_the_schemas_package_is_complete_where_another_attribute_is_read() -> None:
    """What reads it later, perhaps of another package, finds what it would have found without microc."""
    run = """
from microc.frontend.tflite.builtin_options import import_schema
schema = import_schema()
from tflite.Model import Model  # sets the package's attribute, first to the module
assert schema.Model is Model
import tflite
assert tflite is schema and not hasattr(tflite, "nonsense")
names = {}
exec("from tflite import *", names)
assert names["Model"] is Model and {"SubGraphStart", "Conv2DOptions"} <= names.keys()
"""
    subprocess.run([sys.executable, "-c", run], check=True)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_examples(microc: Command, name: str) -> None:
    said = microc(name, "--help")
    assert said.code == 0
    assert f"examples:\n  microc {name}" in said.out


def test_what_a_command_made_ends_with_the_process() -> None:
    """Python would look through it for cycles before it ends, which took a fifth of a compilation."""
    frozen = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0))"
    run = f"{frozen}; from microc.cli import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("True\n")


def test_a_process_ends_after_its_exit_functions_with_the_exit_code() -> None:
    """It ends without freeing its objects; what others registered runs before, and what they print is seen."""
    register = "import atexit, sys; atexit.register(print, 'registered'); sys.argv[1:] = ['train']"
    run = f"{register}; from microc.cli import run_process; run_process()"
    for settings in ("", "sys.setprofile(lambda *event: None); "):  # at once, and by the interpreter's own end
        done = subprocess.run(
            [sys.executable, "-c", run.replace("from", f"{settings}from", 1)], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (2, "registered\n")
        assert "'train' is no command" in done.stderr


def test_version(microc: Command) -> None:
    said = microc("--version")
    assert said.code == 0 and said.out.startswith("microc ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-q"], "COMMAND"),
        (["comple"], "did you mean compile or compare or completion?"),
        (["train"], "'train' is no command"),
        (["compile", MODEL, "--bord", "x"], "did you mean --board"),
        (["compile"], "MODEL"),
        (["compile", MODEL], "-o"),
        (["compile", MODEL, "-o", "x", "--opt-level", "9"], "--opt-level"),
        (["compile", MODEL, "-o", "x", "--input-shape", "a=b"], "is not the shape of an input"),
        (["compile", MODEL, "-o", "x", "--input-shape", "a=0"], "is not the shape of an input"),
        (["compile", MODEL, "-o", "x", "--nonsense"], "--nonsense"),
        (["compile", MODEL, "-o", "x", "--optimize", "ram"], "--optimize"),
        (["compile", MODEL, "-o", "x", "--flash", "64Q"], "is not a number of bytes"),
        (["run", MODEL, "--timeout", "never"], "expected a number of seconds"),
        (["verify", MODEL, "--tolerance", "2"], "expected a tolerance"),
        (["boards", "show"], "got no board, expected a name"),
        (["boards", "show", "nucleo"], "unknown board"),
        (["boards", "list", "host"], "got 'host', expected no name"),
        (["compile", MODEL, "-o", "x", "--board", "microbti"], "did you mean microbit"),
    ],
    ids=lambda x: " ".join(x).replace(MODEL, "MODEL") if isinstance(x, list) else "",
)
def test_wrong_usage(microc: Command, words: list[str], text: str) -> None:
    said = microc(*words)
    assert said.code == 2 and text in said.err and said.out == ""
    as_json = microc(*words, "--json")
    assert as_json.code == 2
    assert as_json.data["schema_version"] == 1 and as_json.data["error"]["code"] == "E0201"


def test_nothing_at_all_is_a_question(microc: Command) -> None:
    said = microc()
    assert said.code == 0 and said.out == microc("--help").out


def test_global_options_on_both_sides(microc: Command) -> None:
    before, after = microc("--json", "boards"), microc("boards", "--json")
    assert before.data == after.data
    assert microc("-q", "boards").out == microc("boards", "-q").out == ""
    assert parse_command_line(["-v", "boards"])[1].verbose


def test_compile_and_build(microc: Command, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    said = microc("compile", MODEL, "-o", folder, "--name", "Digits 2", "--io", "caller")
    assert said.code == 0 and "30,528" in said.out and said.err == ""
    assert (folder / "model.h").read_text().count("struct digits_2_inputs") > 0
    data = microc("compile", MODEL, "-o", folder, "--json").data
    assert data["command"] == "compile" and data["report"]["macs"] == 30528
    said = microc("build", folder)
    assert said.code == 0 and "flash" in said.out and "largest symbols" in said.out
    sizes = microc("build", folder, "--json").data["sizes"]
    assert sizes["flash"] > 8000 and {"name", "section", "size", "address"} == set(sizes["symbols"][0])


def test_import(microc: Command, tmp_path: Path) -> None:
    path = tmp_path / "net.mcg"
    said = microc("import", MODEL, "-o", path)
    assert said.code == 0 and "4 conv2d" in said.out and str(path) in said.out
    assert microc("import", MODEL, "-o", path, "--json").data["operators"]["conv2d"] == 4
    assert microc("check", path).code == 0
    report = microc("compile", path, "-o", tmp_path / "out", "--json").data["report"]
    assert (report["macs"], report["source"], report["model"]) == (30528, "net.mcg", "net")
    assert microc("import", MODEL, "-o", tmp_path / "net.onnx").code == 0
    assert microc("check", tmp_path / "net.onnx", "--json").data["inputs"][0]["dtype"] == "int8"


def test_cut(microc: Command, tmp_path: Path) -> None:
    names = [t["name"] for t in microc("check", MODEL, "--tensors", "--json").data["tensors"]]
    assert "pointwise3" in microc("check", MODEL, "--tensors").out and "pointwise3" in names
    data = microc("check", MODEL, "--inputs", "depthwise2", "--outputs", "pointwise3,conv4", "--json").data
    assert [t["name"] for t in data["inputs"] + data["outputs"]] == ["depthwise2", "pointwise3", "conv4"]
    said = microc("compile", MODEL, "-o", tmp_path / "out", "--outputs", "pointwise")
    assert said.code == 2 and "did you mean" in said.err
    assert microc("check", MODEL, "--outputs", ",").code == 2


def test_ends(microc: Command) -> None:
    data = microc("check", MODEL, "--input-dtype", "float32", "--output-dtype", "probabilities=uint8", "--json").data
    assert [t["dtype"] for t in data["inputs"] + data["outputs"]] == ["float32", "uint8"]
    assert microc("check", MODEL, "--input-layout", "NCHW", "--json").data["inputs"][0]["shape"] == [1, 1, 8, 8]
    assert microc("check", MODEL, "--output-layout", "probabilities=NCHW").code == 2


def test_dump(microc: Command, tmp_path: Path) -> None:
    assert microc("compile", MODEL, "-o", tmp_path / "out", "--dump", tmp_path / "dump").code == 0
    assert len(list((tmp_path / "dump").iterdir())) > 2
    assert (tmp_path / "dump" / "kernels" / "0_conv2d_conv1" / "candidates.txt").is_file()
    (tmp_path / "file").write_text("")
    said = microc("compile", MODEL, "-o", tmp_path / "out", "--dump", tmp_path / "file")
    assert said.code == 2 and (tmp_path / "file").is_file()
    both = ("compile", MODEL, digits.FLOAT, "-o", tmp_path / "both", "--dump", tmp_path / "dumps")
    assert microc(*both).code == 0
    assert sorted(path.name for path in (tmp_path / "dumps").iterdir()) == ["digits_float", "digits_int8"]


def test_verbose_tells_on_stderr(microc: Command, tmp_path: Path) -> None:
    said = microc("compile", MODEL, "-o", tmp_path / "out", "-v")
    assert said.code == 0 and "conv2d" in said.err and "compile: " in said.err


def test_check(microc: Command, tmp_path: Path) -> None:
    said = microc("check", MODEL, "--board", "microbit")
    assert said.code == 0 and "4 conv2d" in said.out and "may fit" in said.out
    data = microc("check", MODEL, "--json").data
    assert data["operators"]["conv2d"] == 4 and data["fits"] is data["verdict"] is None
    data = microc("check", MODEL, "--board", "microbit", "--exact", "--json").data
    assert data["fits"] is True and data["verdict"] == "yes" and data["arena"] >= data["arena_lower_bound"] > 0
    assert microc("check", MODEL, "--board", "microbit", "--json").data["verdict"] == "maybe"
    assert microc("check", MODEL, "--ram", "10").code == 4 == microc("check", MODEL, "--flash", "1K").code
    small = digits.small_board(tmp_path, 4096, 1 << 17)
    said = microc("check", MODEL, "--board", small)
    assert said.code == 4 and "does not fit: weights take" in said.out
    assert microc("check", MODEL, "--board", small, "--json").data["fits"] is False


def test_goal_and_budget(microc: Command, tmp_path: Path) -> None:
    words = ("compile", MODEL, "-o", tmp_path / "out", "--optimize", "size", "--json")
    assert microc(*words, "--flash", "64K").data["report"]["optimize"] == "size"
    said = microc(*words, "--flash", "2k")
    assert said.code == 4 and "budget of 2048 bytes cannot hold" in said.err


def test_too_small_a_board(microc: Command, tmp_path: Path) -> None:
    said = microc(
        "compile", MODEL, "-o", tmp_path / "out", "--board", digits.small_board(tmp_path, 9000, 1 << 17), "--json"
    )
    assert said.code == 4 and said.err.startswith("error[E0401]") and said.data["error"]["code"] == "E0401"
    assert not (tmp_path / "out").exists()


def test_broken_models(microc: Command, tmp_path: Path) -> None:
    assert microc("compile", tmp_path / "absent.tflite", "-o", tmp_path / "out").code == 2
    cut = tmp_path / "cut.tflite"
    cut.write_bytes(digits.INT8.read_bytes()[:5000])
    noise = tmp_path / "noise.tflite"
    noise.write_bytes(np.random.default_rng(3).bytes(4096))
    for path in (cut, noise):
        for words in (["compile", path, "-o", tmp_path / "out"], ["check", path], ["run", path], ["verify", path]):
            said = microc(*words)
            assert said.code == 3 and path.name in said.err
    assert not (tmp_path / "out").exists()


def test_folders_in_the_way(microc: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path, tmp_path / "file", tmp_path / "file" / "below"):
        said = microc("compile", MODEL, "-o", folder)
        assert said.code == 2 and "error[E0202]" in said.err
    assert (tmp_path / "file").read_text() == "mine"
    for name in ("build", "flash", "run", "verify", "profile"):
        assert microc(name, tmp_path).code == 2


def test_run(microc: Command, project: Path, image: Path, tmp_path: Path) -> None:
    out = tmp_path / "y.npy"
    said = microc("run", project, "--input", image, "--output", out)
    assert said.code == 0 and "probabilities" in said.out and "ticks" in said.out
    data = microc("run", project, "--input", image, "--json").data
    assert data["outputs"][0]["values"] == np.load(out).tolist()
    assert np.load(out).argmax() == digits.labels(1)[0]
    said = microc("run", MODEL, "--input", image, "--json")
    assert said.data["outputs"] == data["outputs"]


def test_run_refuses_wrong_inputs(microc: Command, project: Path, image: Path, tmp_path: Path) -> None:
    said = microc("run", project, "--input", image, "--input", image)
    assert said.code == 2 and "image: int8 1x8x8x1" in said.err
    np.save(tmp_path / "flat.npy", np.zeros(64, np.int8))
    np.save(tmp_path / "float.npy", np.zeros((1, 8, 8, 1), np.float32))
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "many.npz", a=np.zeros(1))
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "empty.npy").write_text("")
    for name, text in {
        "flat.npy": "got shape (64,), expected (1, 8, 8, 1)",
        "float.npy": "got dtype float32, expected int8",
        "object.npy": "no .npy file",
        "text.npy": "no .npy file",
        "empty.npy": "no .npy file",
        "many.npz": "an archive of arrays",
        "absent.npy": "cannot read",
    }.items():
        said = microc("run", project, "--input", tmp_path / name)
        assert said.code == 2 and text in said.err
    assert microc("run", project, "--input", image, "--output", "a", "--output", "b").code == 2
    said = microc("run", project, "--input", image, "--output", image / "y.npy")
    assert said.code == 2 and "cannot write" in said.err
    said = microc("run", project, "--input", image, "--board", "microbit")
    assert said.code == 2 and "compiled for 'host'" in said.err


def test_profile(microc: Command, project: Path, image: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    said = microc("profile", project, "--trace", trace, "--input", image)
    assert said.code == 0 and "ticks/MAC" in said.out and "total" in said.out
    assert "matrix" in said.out and "est. cycles" in said.out and "estimated from the code" in said.out
    assert len(json.loads(trace.read_text())["traceEvents"]) > 4
    page, table = tmp_path / "report.html", tmp_path / "layers.csv"
    assert microc("profile", project, "--html", page, "--csv", table, "-q").code == 0
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["unit"] for r in rows] == ["ticks"] * 6 and all(int(r["flash"]) > 100 for r in rows)
    assert (
        "conv4" in page.read_text() and stat.S_IMODE(page.stat().st_mode) == stat.S_IMODE(table.stat().st_mode) & 0o666
    )
    assert microc("profile", project, "--input", table).code == 2
    said = microc("profile", project, "--cycles")
    assert said.code == 2 and "no model of cycles" in said.err
    for option in ("--html", "--csv", "--trace"):
        said = microc("profile", project, option, project / "firmware.elf" / "x")
        assert said.code == 2 and "cannot write" in said.err
    data = microc("profile", project, "--json").data
    assert data["ticks"] == sum(k["ticks"] for k in data["kernels"]) and data["instructions"] is None
    assert all(k["rule"] and k["estimated_cycles"] > 0 for k in data["kernels"])


def test_verify(microc: Command, project: Path, image: Path) -> None:
    said = microc("verify", project, "--samples", 2)
    assert said.code == 0 and "host and host agree: 2 samples" in said.out
    data = microc("verify", project, "--input", image, "--json").data
    assert data["identical"] is True and data["samples"] == 1
    assert microc("verify", project, "--samples", 0).code == 2


def test_verify_reports_a_difference(microc: Command, project: Path, tmp_path: Path) -> None:
    """A firmware that is not what its sources say, though its fingerprint is the same."""
    other = shutil.copytree(project, tmp_path / "other")
    data = other / "model_data.c"
    text = data.read_text()
    start = text.index("{", text.index("dense5_bias"))
    data.write_text(text[: start + 1] + "99999," + text[text.index(",", start) + 1 :])
    newer = time.time() + 60
    os.utime(other / "firmware.elf", (newer, newer))
    for path in (other / "build").rglob("*.o"):
        os.utime(path, (newer, newer))
    said = microc("verify", other, "--json")
    assert said.code == 1 and "differ after kernel" in said.err and "dense5" in said.data["error"]["where"]
    found = said.data["difference"]
    assert (found["tensor"], found["index"], found["kernel"]) == ("dense5", [0, 0], 4) and found["board"] != found[
        "host"
    ]
    assert [layer["kernel"] for layer in said.data["layers"]] == [0, 1, 2, 3] and said.data["identical"] is False


def test_verify_on_data(microc: Command, project: Path, tmp_path: Path) -> None:
    data = tmp_path / "test.npz"
    np.savez(data, image=digits.images(40), kind=digits.labels(40))
    words = ("verify", project, "--data", data, "--samples", 1)
    said = microc(*words, "--labels", "kind")
    assert said.code == 0 and "40 of 40 answers are the host's" in said.out and "truth \\ answer" in said.out
    np.savez(tmp_path / "y.npz", probabilities=np.zeros((40, 10), np.float32))
    found = microc(*words, "--labels", "kind", "--expected", tmp_path / "y.npz", "--json").data["evaluation"]
    assert found["classification"]["accuracy"] >= 0.95 and np.sum(found["classification"]["confusion"]) == 40
    assert found["outputs"][0]["cosine"] is None and 0 < found["outputs"][0]["rmse"] < 1
    assert microc("verify", project, "--labels", "kind").code == 2
    assert microc(*words, "--input", data).code == 2
    assert microc(*words, "--labels", "sort").code == 2
    said = microc("verify", project, "--data", tmp_path / "y.npz")
    assert said.code == 2 and "takes samples of shape Nx1x8x8x1" in said.err


def test_lines_that_fail(microc: Command, project: Path, image: Path) -> None:
    said = microc("run", project, "--input", image, "--port", "/dev/ttyNOWHERE")
    assert said.code == 6 and "cannot open the port" in said.err
    with socket.socket() as server:  # listens, and never says a word
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = f"socket://127.0.0.1:{server.getsockname()[1]}"
        for name in ("profile", "verify"):
            said = microc(name, project, "--port", port, "--timeout", 0.3, "--json")
            assert said.code == 6 and "no answer" in said.data["error"]["what"]
    assert microc("profile", project, "--port", port, "--timeout", 0.3).code == 6
    assert microc("profile", project, "--port", "socket://nowhere").code == 2


def test_flash_on_the_host(microc: Command, project: Path) -> None:
    said = microc("flash", project)
    assert said.code == 2 and "is not flashed" in said.err


def test_boards(microc: Command, tmp_path: Path) -> None:
    said = microc("boards")
    assert said.code == 0 and all(name in said.out for name in ("host", "netduinoplus2", "cortex-m55"))
    assert "131,072" in microc("boards", "show", "netduinoplus2").out
    assert microc("boards", "show", "microbit", "--json").data["board"]["ram"] == 16384
    good = digits.small_board(tmp_path, 4096, 4096)
    assert microc("boards", "validate", good).code == 0
    tried = {b["name"]: b["tried"] for b in microc("boards", "--json").data["boards"]}
    assert (tried["host"], tried["arduino-uno"], tried["nucleo-f446re"]) == ("runs", "simulated", "built")
    assert "not run it on hardware" in microc("boards", "show", "nucleo-f446re").out
    good.write_text(good.read_text().replace('title = "', 'titel = "'))
    said = microc("boards", "validate", good)
    assert said.code == 2 and "small.toml" in said.err


def test_ports(microc: Command) -> None:
    assert microc("ports").code == 0
    assert isinstance(microc("ports", "--json").data["ports"], list)


def test_doctor(microc: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = microc("doctor")
    assert said.code == 0 and "numpy" in said.out and "make" in said.out
    monkeypatch.setenv("PATH", str(tmp_path))
    said = microc("doctor")
    assert said.code == 5 and "apt-get install -y --no-install-recommends gcc libc6-dev make" in said.out
    assert microc("doctor", "--json").data["complete"] is False


def test_missing_tools(
    microc: Command, project: Path, image: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "arm"
    assert microc("compile", MODEL, "--board", "netduinoplus2", "-o", folder).code == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    for words in (["build", project], ["build", folder], ["run", folder, "--input", image], ["verify", MODEL]):
        said = microc(*words)
        assert said.code == 5 and "apt-get install" in said.err


def test_a_defect_leaves_a_traceback_file(microc: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for error in (ZeroDivisionError("oh"), InternalError("oh")):

        def fail(unused: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(catalogue, "run_ports_command", fail)
        said = microc("ports", "--json")
        assert said.code == 70 and said.err.startswith("error[E7001]: this is a defect of microc: ")
        path = Path(said.data["error"]["hint"].split()[-1])
        assert path.parent == tmp_path and "Traceback" in path.read_text()


def test_interruption(microc: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(unused: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "run_ports_command", interrupt)
    assert main(["ports"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_goes_away() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "microc", "boards"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.returncode == 141 and done.stderr == b""


def test_control_c(project: Path) -> None:
    """A real signal while a silent line is waited for."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = f"socket://127.0.0.1:{server.getsockname()[1]}"
        argv = [sys.executable, "-m", "microc", "profile", str(project), "--port", port]
        process = subprocess.Popen(
            argv,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # shells let jobs in the background ignore it
        )
        connection, _ = server.accept()
        with connection:
            connection.recv(16)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=10)
    assert process.returncode == 130 and out == "" and err == "interrupted\n"


@needs("arm-none-eabi-gcc", "qemu-system-arm", "gdb-multiarch")
@pytest.mark.cross
@pytest.mark.emulator
def test_an_emulated_board(microc: Command, tmp_path: Path, image: Path) -> None:
    folder = tmp_path / "arm"
    assert microc("compile", MODEL, "--board", "netduinoplus2", "-o", folder).code == 0
    said = microc("flash", folder)
    assert said.code == 2 and "not built" in said.err
    assert "which has no serial port" in microc("flash", folder, "--port", "/dev/ttyACM0").err
    assert "of 1,048,576 bytes" in microc("build", folder).out
    said = microc("flash", folder)
    assert said.code == 0 and "the board answers" in said.out
    data = microc("flash", folder, "--dry-run", "--runner", "openocd", "--json").data
    assert data["runner"][0] == "openocd" and data["answered"] is False
    assert microc("flash", folder, "--runner", "jlink").code == 2
    data = microc("run", folder, "--input", image, "--json").data
    assert np.argmax(data["outputs"][0]["values"]) == digits.labels(1)[0]
    assert data["instructions"] > 30528
    said = microc("profile", folder)
    assert said.code == 0 and "instructions/MAC" in said.out and "counted by the emulator: neither cycles" in said.out
    assert " ms" not in said.out
    assert microc("verify", folder, "--samples", 1).code == 0
