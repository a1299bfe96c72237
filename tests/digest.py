# SPDX-License-Identifier: Apache-2.0
"""Digests of what microc writes for a fixed set of compilations: the proof that a refactoring changes no generated code.

    python -m tests.digest record FILE [--quick] [--texts DIR]     compile the set, and write its digests
    python -m tests.digest compare FILE OTHER                      name the compilations that differ, and by what

The set is 30 networks on 8 boards and cores with 4 sets of options; ``--quick`` takes 40 compilations of it. Networks: cases of
all operators side by side (12), the examples (4), and models of the corpus (14), which are left out where it is absent. On two
cores all take 8 minutes, the quick ones 25 seconds. A compilation has these digests:

- ``text``: every file of the project, byte by byte, or the error's text;
- ``tokens``: its C without comments and white space, with the names that are local to a function numbered;
- ``object``: machine code and constants of ``model.c`` at -O1, for one set of options and where the board's compiler is there;
- ``json``: what ``--json`` prints, and what ``report`` and ``explain`` say of the first set of options.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from elftools.elf.elffile import ELFFile

import microc
from microc.cli import main as command
from microc.device.toolchain import run_make
from microc.errors import ToolError
from microc.graph.ir import Graph
from microc.ops.registry import registry
from tests.ops.compiled import one_node
from tests.ops.edges import case_arrays
from tests.support import corpus

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
OPERATOR_NETWORKS = 12
SHIPPED = (
    "digits/digits_int8.tflite",
    "digits/digits_qdq.onnx",
    "digits/digits_float.onnx",
    "language_model/model.onnx",
)
CORPUS = (
    "tflm_micro_speech_int8.tflite",
    "tflm_hello_world_int8.tflite",
    "tflm_mnist_lstm_int8.tflite",
    "mlperf_kws_int8.tflite",
    "mlperf_kws_float.tflite",
    "mlperf_ad_int8.tflite",
    "mww_v2_vad.tflite",
    "gen_lstm2_dynrange.tflite",
    "gen_resnet8_trained_int16x8.tflite",
    "gen_misc_ops_float.tflite",
    "pulsevad_2.1k_int8.onnx",
    "ortq_tcn_qdq_s8.onnx",
    "ortq_lstm2_dynq.onnx",
    "torch_tcn_har__dynamo_op18.onnx",
)
PLACES = {
    "microbit": "compile --board microbit",
    "netduinoplus2": "compile --board netduinoplus2",
    "mps3-an547": "compile --board mps3-an547",
    "qemu-riscv32": "compile --board qemu-riscv32",
    "arduino-mega": "compile --board arduino-mega",
    "esp32-s3": "compile --board esp32-s3",
    "x86-64-v3": "export --format cmake --target x86-64-v3",
    "wasm-simd128": "export --format cmake --target wasm-simd128",
}
"""A board or core, and the command that writes C for it."""
OPTIONS = {
    "default": "",
    "speed": "--optimize speed --math fast",
    "size": "--optimize size --io caller --no-shipped",
    "tight": "--opt-level 2 --flash TIGHT_FLASH --ram TIGHT_RAM",
}
"""Sets of options. ``tight`` is given less flash and RAM than ``default`` took, so that the search for a fit runs."""
TIGHT_FLASH, TIGHT_RAM = 0.97, 0.9
"""Shares of the flash that weights and code take by default, and of the arena."""
QUICK, STEP = 40, 11
"""Compilations of the quick set: every STEP-th network, on each board in turn, with options in turn."""


@dataclass(frozen=True)
class Compilation:
    """A network's file, where it shall run, and the set of options."""

    network: str
    place: str
    options: str

    @property
    def name(self) -> str:
        return f"{Path(self.network).stem} {self.place} {self.options}"


# ---- networks


def operator_graph(number: int, of: int) -> Graph:
    """One case of every ``of``-th operator from ``number`` on, side by side in one graph; control flow is left out."""
    parts: list[Graph] = []
    for k, definition in enumerate(
        itertools.islice(sorted(registry().values(), key=lambda d: d.name), number, None, of)
    ):
        cases = list(definition.cases())
        if cases and not definition.regions:
            case = cases[(number + k) % len(cases)]
            arrays = tuple(np.asarray(array, order="C") for array in case_arrays(case))
            parts.append(_renamed(one_node(definition, case, arrays)[0], f"{definition.name}_"))
    return Graph(
        f"operators_{number}",
        tuple(name for part in parts for name in part.inputs),
        tuple(name for part in parts for name in part.outputs),
        tuple(node for part in parts for node in part.nodes),
        {name: type_ for part in parts for name, type_ in part.types.items()},
        {name: array for part in parts for name, array in part.consts.items()},
    )


def _renamed(graph: Graph, prefix: str) -> Graph:
    """The graph with a prefix before the name of every value."""
    (node,) = graph.nodes
    names = tuple(prefix + name for name in node.inputs)
    node = microc.graph.ir.Node(node.op, names, tuple(prefix + name for name in node.outputs), node.attrs)
    types = {prefix + name: type_ for name, type_ in graph.types.items()}
    consts = {prefix + name: array for name, array in graph.consts.items()}
    return Graph(graph.name, tuple(n for n in names if n not in consts), node.outputs, (node,), types, consts)


def networks(folder: Path) -> list[str]:
    """The files of all networks; those of operators are written into ``folder``."""
    paths = []
    for number in range(OPERATOR_NETWORKS):
        graph = operator_graph(number, OPERATOR_NETWORKS)
        paths.append(folder / f"{graph.name}.mcg")
        microc.save(graph, paths[-1])
    paths += [EXAMPLES / name for name in SHIPPED]
    paths += [path for name in CORPUS for path in corpus.models(name)]
    return [str(path) for path in paths]


def compilations(paths: Sequence[str], quick: bool = False) -> list[Compilation]:
    """All of the set; of the quick one every board and every set of options."""
    if not quick:
        return [Compilation(*each) for each in itertools.product(paths, PLACES, OPTIONS)]
    places, options = list(PLACES), list(OPTIONS)
    return [
        Compilation(
            paths[k * STEP % len(paths)], places[k % len(places)], options[(k + k // len(places)) % len(options)]
        )
        for k in range(QUICK)
    ]


# ---- digests


class Compiler:
    """Compiles, in a folder of its own, and remembers what ``default`` took of a network on a board."""

    def __init__(self, folder: Path, texts: Path | None) -> None:
        self.folder, self.texts = folder, texts
        self.taken: dict[tuple[str, str], Mapping[str, Any]] = {}

    def digests(self, what: Compilation) -> dict[str, str]:
        """The digests of a compilation, by kind."""
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        words = [what.network, *PLACES[what.place].split(), *self._options(what)]
        words = [words[1], words[0], *words[2:], "-o", str(out)]
        answer = self._run(words)
        files = sorted(path for path in out.rglob("*") if path.is_file())
        texts = {str(path.relative_to(out)): path.read_bytes() for path in files}
        code = {name: data.decode() for name, data in texts.items() if name.endswith((".c", ".h"))}
        if what.options == "default" and (out / "manifest.json").exists():
            self.taken[what.network, what.place] = json.loads((out / "manifest.json").read_text())
        answers = [answer, *(self._told(what) if what.options == "default" else ())]
        result = {"json": _hash(*answers)}
        if code:
            own = {name: text for name, text in code.items() if not name.startswith("runtime/")}
            result |= {"text": _hash(sorted(texts.items())), "tokens": _hash(tokens(own))}
            if what.options == "speed" and what.place in ("netduinoplus2", "qemu-riscv32", "microbit"):
                result |= self._object(out)
        if self.texts:
            kept = self.texts / f"{what.name}.txt"
            code["answers"] = "".join(json.dumps(each, indent=1) + "\n" for each in answers)
            kept.write_text("".join(f"==== {name}\n{text}" for name, text in code.items()))
        return result

    def _options(self, what: Compilation) -> list[str]:
        words = OPTIONS[what.options].split()
        if what.options == "tight":
            key = (what.network, what.place)
            if key not in self.taken:
                self.digests(Compilation(what.network, what.place, "default"))
            took = self.taken.get(key) or {"const_bytes": 0, "arena_size": 0, "kernels": []}
            flash = took["const_bytes"] + sum(kernel["estimated_code"] for kernel in took["kernels"])
            shares = {"TIGHT_FLASH": TIGHT_FLASH * flash, "TIGHT_RAM": TIGHT_RAM * took["arena_size"]}
            words = [str(max(1, int(shares[word]))) if word in shares else word for word in words]
        return words

    def _told(self, what: Compilation) -> Iterator[object]:
        """Answers of explain and check, which write nothing."""
        place = PLACES[what.place].split()[-2:]
        yield self._run(["explain", what.network, *place])
        if place[0] == "--board":
            yield self._run(["check", what.network, *place])

    def _run(self, words: Sequence[str]) -> dict[str, Any]:
        """Run a command with ``--json``; its answer, without the names of this machine's folders and files."""
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = command([*words, "--json"] + (["--no-cache"] if words[0] in ("compile", "export") else []))
        text = out.getvalue() or error.getvalue()
        for path, name in ((self.folder, "FOLDER"), (EXAMPLES, "EXAMPLES"), (Path(words[1]).parent, "NETWORKS")):
            text = text.replace(str(path), name)
        return {"code": code, **(json.loads(text) if text.startswith("{") else {"text": text})}

    def _object(self, out: Path) -> dict[str, str]:
        """The digest of the bytes of ``model.c``'s object file, if this machine has the compiler."""
        try:
            run_make(out, ["OPT=-O1", "WARNINGS=-w", "build/model.o"])
        except ToolError as error:
            if "not on PATH" in str(error):
                return {}
            raise
        with (out / "build" / "model.o").open("rb") as file:
            sections = [s.data() for s in ELFFile(file).iter_sections() if s["sh_flags"] & 2]
        return {"object": _hash(sections)}


def _hash(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


_TOKEN = re.compile(
    r"""(?P<skip>/\*.*?\*/|//[^\n]*|\s+)|(?P<name>[A-Za-z_]\w*)|(?P<rest>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\w.]+|.)""",
    re.S,
)
_CALLED = re.compile(r"\s*\(")


def tokens(files: Mapping[str, str]) -> list[tuple[str, str]]:
    """The tokens of C files: white space and comments are left out, and a name that is known inside of functions alone is its
    number among those of its function. A member's name, after a dot or an arrow, and a name that is called keep theirs."""
    split = {name: _split(text) for name, text in files.items()}
    outside = {token for parts in split.values() for token, depth, is_name, _ in parts if is_name and not depth}
    found = []
    for name, parts in sorted(split.items()):
        numbers: dict[str, int] = {}
        last = ""
        for token, depth, is_name, called in parts:
            if not depth:
                numbers = {}
            if is_name and depth and not called and token not in outside and last not in (".", ">"):
                token = f"${numbers.setdefault(token, len(numbers))}"
            found.append((name, token))
            last = token
    return found


def _split(text: str) -> list[tuple[str, int, bool, bool]]:
    """Tokens of a file, each with the depth of braces around it, and whether it is a name, and one that is called."""
    result = []
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if match["skip"]:
            continue
        depth -= token == "}"
        result.append((token, depth, bool(match["name"]), bool(match["name"] and _CALLED.match(text, match.end()))))
        depth += token == "{"
    return result


# ---- commands


_compiler: Compiler


def _begin(texts: Path | None) -> None:
    global _compiler
    folder = Path(tempfile.mkdtemp(prefix="microc-digest-"))
    os.environ["MICROC_CACHE"] = str(folder / "cache")
    _compiler = Compiler(folder, texts)


def _network(chosen: list[Compilation]) -> dict[str, dict[str, str]]:
    """The digests of one network's compilations: in one process, for what ``default`` took is asked again."""
    return {what.name: _compiler.digests(what) for what in chosen}


def record(quick: bool = False, texts: Path | None = None, jobs: int | None = None) -> dict[str, dict[str, str]]:
    """The digests of the set, by compilation. ``texts``: a folder that keeps the C that is compared, to look at differences."""
    if texts:
        texts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="microc-networks-") as folder:
        wanted = compilations(networks(Path(folder)), quick)
        groups = [list(g) for _, g in itertools.groupby(sorted(wanted, key=lambda w: w.network), lambda w: w.network)]
        context = multiprocessing.get_context("spawn")
        with context.Pool(jobs or os.cpu_count(), _begin, (texts,)) as pool:
            parts = pool.map(_network, groups, chunksize=1)
    return {name: part[name] for part in parts for name in sorted(part)}


def differences(one: Mapping[str, Mapping[str, str]], other: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The kinds of digests that differ, by compilation; one that only a side has differs in ``all``."""
    found = {}
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        kinds = ["all"] if a is None or b is None else [kind for kind in sorted({*a, *b}) if a.get(kind) != b.get(kind)]
        if kinds:
            found[name] = kinds
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.digest", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="compile the set, and write its digests")
    recording.add_argument("file", type=Path)
    recording.add_argument("--quick", action="store_true", help=f"{QUICK} compilations of the set")
    recording.add_argument("--texts", type=Path, metavar="DIR", help="keep the C, which `compare` shows differences of")
    recording.add_argument("--jobs", type=int, metavar="N", help="processes (default: as many as processors)")
    comparing = commands.add_parser("compare", help="name the compilations that differ; exit code 1 if any does")
    comparing.add_argument("file", type=Path)
    comparing.add_argument("other", type=Path)
    comparing.add_argument("--texts", type=Path, nargs=2, metavar="DIR", help="what `record --texts` kept of the two")
    arguments = parser.parse_args(words)
    if arguments.command == "record":
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        digests = record(arguments.quick, arguments.texts, arguments.jobs)
        arguments.file.write_text(json.dumps(digests, indent=1) + "\n")
        sys.stdout.write(f"{len(digests)} compilations in {time.monotonic() - start:.0f} s: {arguments.file}\n")
        return 0
    one, other = (json.loads(path.read_text()) for path in (arguments.file, arguments.other))
    found = differences(one, other)
    for name, kinds in found.items():
        sys.stdout.write(f"{name}: {', '.join(kinds)}\n")
    sys.stdout.write(f"{len(found)} of {len({*one, *other})} compilations differ\n")
    if found and arguments.texts:
        paths = [folder / f"{next(iter(found))}.txt" for folder in arguments.texts]
        lines = [path.read_text().splitlines(keepends=True) for path in paths]
        sys.stdout.writelines(itertools.islice(difflib.unified_diff(*lines, *map(str, paths)), 60))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
