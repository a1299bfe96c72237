# SPDX-License-Identifier: Apache-2.0
"""What reads bytes of others, and the target of the fuzzer that attacks it.

:data:`READERS` names every file of ``microc`` that opens or decodes something, with the targets that reach it; a test derives the
files from the code, and fails where one is missing. A feature that reads something new brings a target along: a :class:`Target`
here (bytes and structure are mutated, the reader runs in this process within time and memory, and ends in a result or a
MicrocError), or one of the larger campaigns (:data:`CAMPAIGNS`).
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import resource
import struct
import tarfile
import tempfile
import time
import traceback
import wave
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import microc
from microc.base import file_access
from microc.cli.reporting import read_json_report as read_sizes
from microc.codegen.exports import load_format
from microc.codegen.output_files import read_manifest, write_tree
from microc.compiler import option_values
from microc.compiler.cache import CacheEntry, ChoiceFile
from microc.compiler.tuned.optimisation_plan import read_plan
from microc.compiler.tuned.records import open_records
from microc.compiler.validation import load_head
from microc.device.board_info import read_blob
from microc.device.boards import load_board, load_board_copy
from microc.device.flashing import read_segments
from microc.device.toolchain import read_linked_sizes
from microc.device.transport import read_token_file
from microc.errors import MicrocError, UsageError
from microc.features import declared_features
from microc.frontend.detect import read_model_data as read_model
from microc.graph.file import to_bytes
from microc.project.config import read_config
from microc.reports import evidence
from microc.reports.evidence import read_accuracy
from microc.reports.firmware_size import cut_program_into_pieces
from microc.reports.saved_reports import read_report
from microc.run.board_project import open_project
from microc.run.data import array_files as data_files
from microc.run.data.pictures import PictureReader
from microc.run.data.samples import LearnedTensors, read_weights
from microc.run.desktop.load import MEMBERS, _read_tar
from microc.schedule.schedule import trace_from_json
from tests.device.test_blob import BLOB
from tests.frontend.torch_file import archive as torch_archive
from tests.frontend.trees import test_catboost as catboost
from tests.frontend.trees import test_xgboost as xgboost
from tests.fuzz.trial import TooLong, limited
from tests.support import digits

SECONDS, MEMORY = 20, 2 << 30
"""Of one reader: what SECURITY.md grants."""
CAMPAIGNS = MappingProxyType(
    {
        "tflite": "tests/fuzz/trial.py: whole compilations of mutated flatbuffers",
        "onnx": "tests/fuzz/trial.py: whole compilations of mutated protobufs",
        "keras": "tests/fuzz/trial.py: whole compilations of mutated archives",
        "mcg": "tests/fuzz/trial.py: whole compilations of mutated graph files",
        "frames": "tests/fuzz/lines.py: frames against the runtime (libFuzzer)",
        "client": "tests/fuzz/lines.py: answers of boards against the host's client",
        "slots": "runtime_c slots: images, power cuts and commits against the slot protocol (runtime_c/Makefile)",
    }
)
"""Targets that are programs of their own."""

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = (b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"-2147483649", b"18446744073709551616", b"1e999", b"-0.5",
            b"NaN", b"1e-400", b"9" * 400, b"9" * 5000, b"true", b"null", b'""', b"[]", b"{}")  # fmt: skip
_PIECES = (b"\0", b"\xff", b"\n", b"=", b",", b'"', b"[", b"]", b"{", b"}", b"\x1b[2J", b"../", b"/dev/zero", b"\xed\xa0\x80",
           b"[" * 5000, b'{"a":' * 5000, b"\\u0000", b"\xef\xbb\xbf", b"a" * 5000, b"a." * 20_000)  # fmt: skip
_TURN = 100
_INTEGERS = (0, 1, 127, 128, 255, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Change bytes, numbers and pieces of a file, a few at a time; now and then a member of an archive instead."""
    if data.startswith(b"PK") and rng.random() < 0.7:
        return _other_member(data, rng)
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(found) + 1)
        end = min(len(found), at + rng.choice((1, 2, 4, 16, 200)))
        kind = rng.randrange(8)
        if kind == 0:
            found[at:end] = rng.randbytes(end - at)
        elif kind == 1:
            del found[at:end]
        elif kind == 2:
            found[at:at] = rng.choice(_PIECES)
        elif kind == 3:
            found[at:at] = found[at:end] * rng.choice((1, 2, 50))
        elif kind == 4:
            del found[at:]
        elif kind == 5 and (numbers := list(_NUMBER.finditer(bytes(found[:100_000])))):
            place = rng.choice(numbers)
            found[place.start() : place.end()] = rng.choice(_NUMBERS)
        elif kind == 6 and len(found) >= 8:
            size, at = rng.choice((1, 2, 4, 8)), rng.randrange(len(found) - 7)
            value = rng.choice(_INTEGERS) & (1 << 8 * size) - 1
            found[at : at + size] = value.to_bytes(size, rng.choice(("little", "big")))
        elif len(lines := bytes(found).split(b"\n")) > 2:
            a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[a] = rng.choice((lines[b], b"", lines[a] * 2))
            found = bytearray(b"\n".join(lines))
    return bytes(found)


def _other_member(data: bytes, rng: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(file, "w", rng.choice((0, 8))) as made:
        names = archive.namelist()
        chosen = rng.choice(names)
        for name in names:
            if name != chosen or rng.random() < 0.9:
                content = archive.read(name)
                other = rng.choice((name, name, name, "../x", "a" * 300)) if name == chosen else name
                made.writestr(zipfile.ZipInfo(other), mutated(content, rng) if name == chosen else content)
    return file.getvalue()


@dataclass(frozen=True)
class Target:
    """A reader: ``seeds`` are files by name, ``read`` is given the path of a mutant, under the seed's name and beside what
    ``beside`` makes in its folder."""

    seeds: Callable[[], Mapping[str, bytes]]
    read: Callable[[Path], object]
    beside: Callable[[], Mapping[str, str | bytes]] = dict


def attempt(target: Target, data: bytes, name: str, folder: Path) -> str:
    """What is wrong with the way in which a reader ends; empty for a result or a MicrocError in time and memory."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        with limited(SECONDS), _bounded():
            target.read(path)
    except MicrocError as error:
        said = str(error)
        if error.exit_code == 70 or any(not c.isprintable() and c not in "\n\t" for c in said):
            return f"{type(error).__name__}: {said[:200]}"
    except (Exception, TooLong) as error:  # noqa: BLE001 - all of them are what is looked for
        return "".join(traceback.format_exception(error)[-4:])
    return ""


@contextmanager
def _bounded() -> Iterator[None]:
    """MemoryError beyond what a reader may take on top of what the process has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def mutants(name: str, seed: int, count: int) -> Iterator[str]:
    """Try so many mutants of a target; what each that is wrong has done. The same seed tries the same."""
    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="microc-fuzz-") as place:
        folder = Path(place)
        beside = target.beside()
        write_tree(folder / "in", beside)
        seeds = sorted(target.seeds().items())
        for number in range(count):
            rng = random.Random(f"{name} {seed} {number}")
            file, data = rng.choice(seeds)
            said = attempt(target, mutated(data, rng), file, folder / "in")
            if said:
                yield f"{name} {file}, seed {seed}, mutant {number}: {said}"
            with suppress(OSError):
                (folder / "in" / file).unlink()


def campaign(seconds: float, seed: int) -> tuple[int, list[str]]:
    """Try all targets in turn until the time is over: how many mutants, and what was wrong."""
    deadline, count, found = time.monotonic() + seconds, 0, list[str]()
    while time.monotonic() < deadline:
        for name in TARGETS:
            found += mutants(name, seed, _TURN)
            count += _TURN
        seed += 1
    return count, found


@cache
def _project() -> dict[str, bytes]:
    """A compiled project, small."""
    program = microc.compile(digits.INT8, board="host", cache=False)
    files = {name: each.encode() if isinstance(each, str) else each for name, each in program.files().items()}
    return {**files, "report.json": program.report_page().json().encode()} if hasattr(program, "report_page") else files


def _only(name: str) -> Callable[[], Mapping[str, bytes]]:
    return lambda: {name: _project()[name]}


def _without(name: str) -> Callable[[], Mapping[str, bytes]]:
    return lambda: {other: data for other, data in _project().items() if other != name}


def _saved(write: Callable[[Any], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _arrays() -> Mapping[str, bytes]:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    return {
        "x.npy": _saved(lambda file: np.save(file, x)),
        "x.npz": _saved(lambda file: np.savez(file, x=x, y=x.astype(np.int8))),
        "y.npz": _saved(lambda file: np.savez_compressed(file, x=x)),
        "x.csv": b"a,b\n1,2.5\n-3e4,nan\n",
        "x.tsv": b"1\t2\n3\t4\n",
    }


_LEARNED = LearnedTensors(({"name": "w", "shape": [3, 4], "dtype": "float32", "bytes": 48},), bytes(range(32)))


def _weights() -> Mapping[str, bytes]:
    arrays: dict[str, Any] = {"w": np.ones((3, 4), np.float32), "network.sha256": np.arange(32, dtype=np.uint8)}
    return {"w.npz": _saved(lambda file: np.savez(file, **arrays))}


def _sound(file: Any, width: int, channels: int) -> None:
    with wave.open(file, "wb") as sound:
        sound.setparams((channels, width, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(range(48)))


def _sounds() -> Mapping[str, bytes]:
    made = ((width, channels) for width in (1, 2, 3, 4) for channels in (1, 2))
    return {f"{w}_{c}.wav": _saved(partial(_sound, width=w, channels=c)) for w, c in made}


def _pictures() -> Mapping[str, bytes]:
    from PIL import Image

    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    kinds = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP", "ppm": "PPM"}
    return {f"x.{end}": _saved(partial(picture.save, format=kind)) for end, kind in kinds.items()}


_PIXELS = {"name": "x", "shape": [1, 8, 8, 3], "dtype": "uint8", "scale": None, "zero_point": 0, "layout": "NHWC"}


def _tar() -> Mapping[str, bytes]:
    def write(file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name in MEMBERS:
                entry = tarfile.TarInfo(name)
                entry.size = 2
                archive.addfile(entry, io.BytesIO(b"{}"))

    data = _saved(write)
    return {"x.tar": data, "z.tar": gzip.compress(data)}


def _trees() -> Mapping[str, bytes]:
    found = xgboost.model([xgboost.STUMP, xgboost.DEEP])
    symmetric, nested = (
        {name: [tree]} for name, tree in (("oblivious_trees", catboost.SYMMETRIC), ("trees", catboost.NESTED))
    )
    return {
        "x.json": xgboost.written(found),
        "x.ubj": xgboost.ubjson(found),
        "symmetric.json": catboost.written(catboost.model(symmetric)),
        "nested.json": catboost.written(catboost.model(nested)),
    }


def _bundle() -> Mapping[str, bytes]:
    import hashlib

    facts = json.dumps({"project": {"fingerprint": "0"}, "evaluation": None, "comparisons": []}).encode()
    return {"SHA256SUMS": f"{hashlib.sha256(facts).hexdigest()}  evidence.json\n".encode()}


def _facts() -> Mapping[str, bytes]:
    return {
        "evidence.json": json.dumps({"project": {"fingerprint": "0"}, "evaluation": None, "comparisons": []}).encode()
    }


_VERIFIED = {
    "fingerprint": "0", "identical": True, "samples": 3,
    "evaluation": {"samples": 3, "classification": {"output": "y", "correct": 2, "total": 3, "confusion": [[1, 0], [1, 1]]},
                   "outputs": [{"output": "y", "rmse": 0.5, "largest": 1, "cosine": 0.9}]},
}  # fmt: skip

_COMPARED = {
    "board": "host", "unit": "ticks", "fingerprint": "0", "time": 9, "flash": 9, "ram": 9,
    "tflm": {"build": "x", "time": 9, "flash": 9, "ram": 9, "arena": 9, "values": 9, "different": 0, "largest": 0.0},
}  # fmt: skip

_ELF = (
    b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 184, 0, 64, 56, 1, 64, 3, 2)
    + struct.pack("<IIQQQQQQ", 1, 5, 120, 0, 0x1000, 8, 8, 4) + bytes(range(8))
    + b"\0.text\0.shstrtab\0".ljust(56, b"\0")
    + bytes(64)
    + struct.pack("<IIQQQQIIQQ", 1, 1, 6, 0x1000, 120, 8, 0, 0, 4, 0)
    + struct.pack("<IIQQQQIIQQ", 7, 3, 0, 0, 128, 17, 0, 0, 1, 0)
)  # fmt: skip


def _elf(path: Path) -> None:
    for read in (read_segments, read_linked_sizes, cut_program_into_pieces):
        with suppress(MicrocError):
            read(path)


def _entry() -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        entry = CacheEntry(Path(folder) / "x.entry")
        entry.write({"a.c": "int a;", "b/c.bin": b"\0\1"}, {"model": "x"})
        return {"x.entry": entry.path.read_bytes()}


_CHOICE = 40 * "0"


def _choices() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = ChoiceFile(Path(folder) / "x.choices")
        for key in (_CHOICE, 40 * "1"):
            file.add(key, [0, "generic", [["split", "k", [None, 4]]], []])
        return file.path.read_bytes()


def _sealed_entry(path: Path) -> None:
    """The same behind a digest that is right: what the digest does not tell."""
    import hashlib
    import zlib

    packed = zlib.compress(path.read_bytes())
    path.write_bytes(b"microc 1 " + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed)
    CacheEntry(path).read()


_RECORD = (
    b'{"key": "' + b"0" * 40 + b'", "op": "dense", "layer": "#1", "cpu": "cortex-m4", "board": "b", "toolchain": "t", '
    b'"unit": "instructions", "status": "ok", "algorithm": "direct", "rule": "matrix", "decisions": {"tile.rows": 2}, '
    b'"trace": [["split", "k", [null, 4]]], "ticks": 100.0, "code": 50, "constants": 64, "workspace": 0}\n'
)
_PLAN = {
    "plan_version": 1,
    "core": "cortex-m4",
    "kernels": [{"key": "0" * 40, "choice": "default", "layers": ["#1 dense"]}],
}
_CONFIG = (
    b'model = ["a.tflite", "b.onnx"]\nboard = "b.toml"\nfolder = "firmware"\n\n[options]\nname = "net"\nram = "30K"\n'
    b'input-shape = ["x=1,3,8"]\nbounds = { n = [1, 8, 1] }\ndump = "d/e"\nplugins = ["p.py"]\nexternal = ["cmsis-nn=c"]\n'
    b'class-names = ["a", "b"]\nstream = 1\ninput_normalize = "1 2"\nstate = { a = "b" }\nmath = "fast"\n'
)
_HEAD = b'[learn]\nlayers = ["dense5"]\nparameters = "biases"\noptimiser = "adam"\nbeta1 = 0.8\naccumulate = 4\n'
_FEATURES = (
    b'preset = "mfcc"\nrate = 16000\n',
    b'rate = 16000\n[[stage]]\nkind = "Window"\nsize = 480\nhop = 160\n[[stage]]\nkind = "Spectrum"\n',
)
_FORMAT = 'title = "x"\nstatus = "y"\nchecked = "z"\nsources = "src"\n[files]\n"a.txt" = "a.j2"\n'


def _board_seeds() -> Mapping[str, bytes]:
    names = ("host", "mps2-an386", "stm32f405", "microbit", "arduino-mega")
    return {
        f"{name}.toml": path.read_bytes()
        for name in names
        if (path := file_access.boards_folder() / f"{name}.toml").is_file()
    }


def _formats() -> Mapping[str, bytes]:
    shipped = {
        f"{path.parent.name}/format.toml": path.read_bytes()
        for path in (file_access.templates_folder() / "export").glob("*/format.toml")
    }
    return {**dict(sorted(shipped.items())[:4]), "own/format.toml": _FORMAT.encode()}


def _read_project(path: Path) -> None:
    read_manifest(path.parent)
    open_project(path.parent)


def _class_names(path: Path) -> None:
    """A ValueError is how words of a command line are refused; both callers make a UsageError of it."""
    try:
        option_values.read_text_lines(str(path))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _model(path: Path) -> object:
    return read_model(path.read_bytes(), path.name)


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "trees": Target(_trees, _model),
        "torch": Target(lambda: {"x.pt2": torch_archive()}, _model),
        "graph text": Target(
            lambda: {"x.mcg": to_bytes(read_model(digits.INT8.read_bytes(), "x.tflite"))},
            lambda path: read_model(path.read_bytes(), "x.mcg"),
        ),
        "configuration": Target(lambda: {"microc.toml": _CONFIG}, read_config),
        "class names": Target(lambda: {"x.txt": "cat\ndög\n".encode()}, _class_names),
        "board": Target(_board_seeds, load_board),
        "board copy": Target(_only("board/board.json"), lambda path: load_board_copy(path, "host")),
        "project": Target(_only("manifest.json"), _read_project, _without("manifest.json")),
        "features": Target(lambda: {f"{n}.toml": each for n, each in enumerate(_FEATURES)}, declared_features.read),
        "head": Target(lambda: {"head.toml": _HEAD}, load_head),
        "records": Target(lambda: {"x.jsonl": _RECORD * 3}, lambda path: open_records(path).rows()),
        "plan": Target(lambda: {"x.json": json.dumps(_PLAN).encode()}, read_plan),
        "trace": Target(
            lambda: {"x.json": b'[["split", "k", [null, 4]], ["x"]]'},
            lambda path: trace_from_json(path.read_text("utf-8", "replace")),
        ),
        "cache": Target(_entry, lambda path: CacheEntry(path).read()),
        "choices": Target(lambda: {"x.choices": _choices()}, lambda path: ChoiceFile(path).find(_CHOICE)),
        "cache inside": Target(
            lambda: {"x.entry": b'{"files": [["a.c", true, "int a;"], ["b", false, "00ff"]], "report": {"a": 1}}'},
            _sealed_entry,
        ),
        "token": Target(lambda: {"token": b"a-token-of-the-tests\n"}, lambda path: read_token_file(path, "--token")),
        "blob": Target(lambda: {"x.bin": BLOB.pack()}, read_blob),
        "report": Target(lambda: {"x.json": b'{"report_version": 1, "totals": {}, "layers": []}'}, read_report),
        "sizes": Target(lambda: {"x.json": b'{"symbols": [{"name": "a", "size": 1}]}'}, read_sizes),
        "accuracy": Target(lambda: {"x.json": json.dumps(_VERIFIED).encode()}, read_accuracy),
        "comparison": Target(
            lambda: {"x.json": json.dumps({"boards": [_COMPARED]}).encode()},
            lambda path: evidence.read_tflm_comparison(path, "host", "0"),
        ),
        "evidence": Target(_bundle, lambda path: evidence.read_evidence_bundle(path.parent), _facts),
        "evidence facts": Target(_facts, lambda path: read_accuracy(path.parent), lambda: {"SHA256SUMS": ""}),
        "arrays": Target(_arrays, data_files.read_arrays),
        "array": Target(_arrays, data_files.load_npy_file),
        "weights": Target(_weights, lambda path: read_weights(path, _LEARNED)),
        "sounds": Target(_sounds, data_files.read_arrays),
        "pictures": Target(_pictures, lambda path: data_files.read_arrays(path, PictureReader(_PIXELS, None))),
        "sources": Target(_tar, _read_tar),
        "program": Target(lambda: {"x.elf": _ELF}, _elf),
        "format": Target(_formats, lambda path: load_format(str(path.parent))),
    }
)

CLOSED: Mapping[str, str] = MappingProxyType(
    {
        "codegen/c/resources.py": "a table that comes with microc",
        "cli/commands.py": "a manifest that the same command has made",
        "codegen/c/source.py": "text of microc's own",
        "codegen/c/interface.py": "the file of weights that the same compilation has made",
        "codegen/project/firmware.py": "the runtime that comes with microc",
        "codegen/render.py": "bytecode of templates, beside Python's own and trusted as that",
        "cli/__init__.py": "the null device",
        "base/operating_system.py:lock_path": "a file or folder that is locked and not read",
        "device/emulators.py": "QEMU's monitor, a tool",
        "device/boards.py:_make_runner": "files that come with microc",
        "device/toolchain.py:compile_webassembly_module": "what clang has linked, a tool",
        "project/first_steps.py": "files that come with microc",
        "run/desktop/library.py": "an archive that is written; libraries, machine code and trusted; memory of microc's own",
        "run/arm_cycles.py": "llvm-mca and the counts of microc's own plugin, tools",
        "run/board_project.py:build_network_file": "what was linked just now",
        "run/reference_engines.py": "a model that its own reader has read before; an object in memory, trusted",
        "codegen/output_files.py:append_line": "lines that are written",
        "compiler/network_cost.py": "a table that comes with microc",
        "compiler/tuned/shipped.py": "files that come with microc",
        "external/cmsis_nn/cmsis_library.py": "a library, trusted and read within bounds",
        "external/ethos_u/driver.py": "a library, trusted and read within bounds; weights of microc's own",
        "external/ethos_u/accelerator.py": "what Vela, a tool, has written",
        "frontend/detect.py:serialise_to_file_name_and_bytes": "objects in memory, trusted",
        "frontend/detect.py:_read_keras_object": "objects in memory, trusted",
        "frontend/tflite/writer.py": "weights that are written",
        "plugin.py": "a plugin, which is a program, trusted",
        "base/file_access.py": "opens files for all others",
        "run/tflm_firmware.py": "headers and a library, trusted and read within bounds",
        "tuning/whole_network.py": "a process of microc's own",
        "tuning/meters.py": "a process of microc's own",
        "tuning/timing_process.py": "a process of microc's own",
        "tuning/fleet.py": "workers of a fleet, whom SECURITY.md trusts; the scheduler of a fleet, whom SECURITY.md trusts",
    }
)
"""Files that read, but nothing of strangers; each says what."""
READERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cli/reporting.py": ("sizes", "program"),
        "codegen/exports.py": ("format",),
        "codegen/output_files.py": ("project",),
        "device/board_info.py": ("blob",),
        "device/boards.py": ("board", "board copy"),
        "device/client.py": ("client", "slots"),
        "device/transport.py": ("token",),
        "device/line_protocol.py": ("client", "frames"),
        "device/flashing.py": ("program",),
        "reports/firmware_size.py": ("program",),
        "device/toolchain.py": ("program",),
        "compiler/cache.py": ("cache", "cache inside", "choices"),
        "project/config.py": ("configuration",),
        "run/data/array_files.py": ("arrays", "array", "sounds", "pictures"),
        "run/data/samples.py": ("weights",),
        "run/data/pictures.py": ("pictures",),
        "run/desktop/load.py": ("sources",),
        "run/board_project.py": ("project",),
        "run/session.py": ("client",),
        "compiler/validation.py": ("head",),
        "compiler/option_values.py": ("class names", "configuration"),
        "reports/evidence.py": ("accuracy", "comparison", "evidence", "evidence facts"),
        "reports/saved_reports.py": ("project", "report"),
        "compiler/tuned/optimisation_plan.py": ("plan",),
        "compiler/tuned/records.py": ("records",),
        "features/declared_features.py": ("features",),
        "frontend/model_limits.py": ("keras", "torch", "trees"),
        "frontend/detect.py": ("tflite", "onnx", "keras", "mcg"),
        "frontend/graph_file.py": ("mcg", "graph text"),
        "frontend/keras/file.py": ("keras",),
        "frontend/onnx/file.py": ("onnx",),
        "frontend/tflite/operators_gather.py": ("tflite",),
        "frontend/tflite/operators_elementwise.py": ("tflite",),
        "frontend/tflite/file.py": ("tflite",),
        "frontend/tflite/builtin_options.py": ("tflite",),
        "frontend/torch/file.py": ("torch",),
        "frontend/trees/boosters.py": ("trees",),
        "frontend/trees/catboost_json.py": ("trees",),
        "graph/file.py": ("mcg", "graph text"),
        "graph/text.py": ("mcg", "graph text"),
        "schedule/schedule.py": ("trace",),
    }
)
"""Files of ``microc`` that read bytes of strangers, and the targets that attack them."""
