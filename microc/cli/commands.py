"""Commands around a compilation: compile, check, import, build, flash, run."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.immutable import Later, Registry
from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.project_context import check_places, compile_bundle, compile_model, progress, refuse_other
from microc.cli.reporting import advice_here, estimate_rows, next_steps, state_rows
from microc.cli.shared_options import chosen_options
from microc.errors import ToolError, UsageError

if TYPE_CHECKING:
    from microc.compiler.api import Program
    from microc.compiler.bundle import Bundle
    from microc.device.toolchain import Sizes
    from microc.project.model_check import Check


# ---- Lines of what ``microc compile`` says: of streams and self-tests, and what to type next.


def next_rows(arguments: Arguments, folder: Path, board: str) -> list[tuple[str, object]]:
    """What to type next: to see it run, and to take the network into a firmware of one's own."""
    here, model = shlex.quote(str(folder)), shlex.quote(str(arguments.models[0]))
    named = f" --board {shlex.quote(arguments.board)}" if arguments.board else ""
    flash = "" if board == "host" else f" && microc flash {here}"
    if chosen_options(arguments).get("relocatable"):
        if not folder.is_dir():
            return [("next", f"microc load {here} --port PORT")]
        return [("next", f"microc build {here}{flash}, once for all networks; then microc load {here}")]
    return [
        ("next", f"microc build {here}{flash} && microc verify {here}"),
        (
            "to ship it",
            f"microc export {model}{named} --format c -o DIR (microc export --list: for Arduino, CMake, Zephyr ...)",
        ),
    ]


def test_rows(report: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What the network checks itself with."""
    found = report["self_test"]
    return [("self-test", f"{found['samples']} samples, {show.count(found['bytes'])} bytes")] if found else []


def stream_rows(report: Mapping[str, Any]) -> list[tuple[str, object]]:
    """How a network takes a sequence frame by frame."""
    found = report["streaming"]
    if found is None:
        return []
    rows: list[tuple[str, object]] = [("stream", f"frames a run: {found['hop']}")]
    for name, output in found["outputs"].items():
        gives = f"frames: {output['frames']}, {output['delay']} late" if output["frames"] else "of the last frames"
        rows.append((f"  {name}", f"{gives}, from run {output['first'] + 1} on"))
    return rows


# ---- ``-`` in the place of a model or of data: what comes on standard input, read once, within bounds, into a file
# of its own.

_PIPE = Path("-")
_PLACES = ("model", "models", "inputs", "data", "evaluation")
_MOST = 256 << 20
"""Bytes, as of a model's file."""


@contextmanager
def piped(arguments: Arguments) -> Iterator[None]:
    """Give the arguments the path of a temporary file for ``-``; UsageError where it stands twice, or nothing comes."""
    given = {name: getattr(arguments, name, None) for name in _PLACES}
    count = sum(value.count(_PIPE) if isinstance(value, list) else value == _PIPE for value in given.values())
    if not count:
        yield
        return
    if count > 1:
        raise UsageError("- stands for standard input, which is read once", hint="give the other a file")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "- stands for standard input, which is a terminal", hint="pipe a file in: cat x.npy | microc ..."
        )
    data = sys.stdin.buffer.read(_MOST + 1)
    if not 0 < len(data) <= _MOST:
        raise UsageError(
            f"{'no' if not data else f'more than {_MOST}'} bytes came on standard input",
            hint="does the command before the pipe succeed?",
        )
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        path = Path(folder) / f"stdin{_suffix(data) if _PIPE not in (given['model'], *(given['models'] or ())) else ''}"
        path.write_bytes(data)
        for name, value in given.items():
            if isinstance(value, list):
                setattr(arguments, name, [path if each == _PIPE else each for each in value])
            elif value == _PIPE:
                setattr(arguments, name, path)
        yield


def _suffix(data: bytes) -> str:
    """What data are, by what they start with; else a table."""
    starts = {b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"RIFF": ".wav", b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg"}
    return next((suffix for start, suffix in starts.items() if data.startswith(start)), ".csv")


# ---- What the commands do: call the driver, and put the result into data (``--json``) and text.

_SHOWN_SYMBOLS = 12


def compile_(arguments: Arguments) -> show.Answer:
    """``microc compile``."""
    from microc.codegen.output_files import check_folder
    from microc.codegen.project.protocols import BLOB_SUFFIX
    from microc.reports.summary import worth_a_line
    from microc.reports.text_tables import memory_rows

    if arguments.output is None:
        raise UsageError("compile needs the folder to write", hint="add -o DIR")
    if arguments.output.suffix == BLOB_SUFFIX and chosen_options(arguments).get("relocatable"):
        check_places(**{"-o": arguments.output})
    else:
        check_folder(arguments.output)
        refuse_other(arguments.output, arguments, arguments.models)
    if len(arguments.models) > 1:
        return _compile_several(arguments, arguments.output)
    program = compile_model(arguments.models[0], arguments)
    told = progress(arguments)
    if told is not None:
        told("C", 0, 2)
    sizes = _linked_sizes(program)
    folder = program.write(arguments.output)
    if told is not None:
        told("report", 1, 2)
    report = _with_linked_sizes(program.report(), sizes)
    rows = [
        ("model", f"{report['source']} -> {folder} for {report['board']} ({report['cpu']})"),
        *_tensor_rows(report),
        *stream_rows(report),
        ("kernels", f"{report['kernels']} ({report['functions']} functions)"),
        ("multiply-accumulates", f"{show.count(report['macs'])} of {show.count(report['nominal_macs'])} in the model"),
        *_arithmetic_rows(report, ()),
        ("weights", f"{show.count(report['weight_bytes'])} bytes"),
        (
            "arena",
            f"{show.count(report['arena'])} bytes (lower bound {show.count(report['arena_lower_bound'])}, {report['planner']})",
        ),
        *memory_rows(report["memories"]),
        *_streamed_rows(report),
        *test_rows(report),
        ("in place", f"{sum(layer['in_place'] > 0 for layer in report['layers'])} kernels write over what they read"),
        _flash_row(report),
        ("RAM", show.of(report["ram"], report["board_ram"])),
        *estimate_rows(report),
        *next_rows(arguments, folder, report["board"]),
    ]
    about = {**json.loads(program.files()["manifest.json"]), "board": {"name": report["board"]}}
    steps = advice_here(worth_a_line(report["next_steps"]), about, arguments, arguments.models[0])
    text = "\n\n".join(filter(None, (show.facts(rows), next_steps(steps))))
    return show.Answer({"folder": str(folder), "report": report}, text)


def _compile_several(arguments: Arguments, output: Path) -> show.Answer:
    """Several networks in one firmware."""
    firmware = compile_bundle(arguments)
    sizes = _linked_sizes(firmware)
    folder = firmware.write(output)
    report = _with_linked_sizes(firmware.report(), sizes)
    cells = [
        (m["model"], m["source"], m["kernels"], *(show.count(m[key]) for key in ("macs", "weight_bytes", "arena")))
        for m in report["models"]
    ]
    rows = [
        ("firmware", f"{folder} for {report['board']}"),
        ("arena", f"{show.count(report['arena'])} bytes, {show.count(report['shared_arena'])} of them shared"),
        _flash_row(report),
        ("RAM", show.of(report["ram"], report["board_ram"])),
    ]
    text = show.table(("network", "model", "kernels", "MACs", "weights", "arena"), cells, 2) + "\n\n" + show.facts(rows)
    return show.Answer({"folder": str(folder), "report": report}, text)


def _linked_sizes(program: Program | Bundle) -> Sizes | None:
    """Link the firmware before anything is written; FitError where the linker finds no room. None without a compiler, or with
    one that fails: ``microc build`` says how."""
    if program.board.target.isa == "host":
        return None
    from microc.run.board_project import linked_sizes

    try:
        return linked_sizes(program.files(), program.board)
    except ToolError:
        return None


def _with_linked_sizes(report: Mapping[str, Any], sizes: Sizes | None) -> dict[str, Any]:
    """Replace estimates of flash and RAM by those of the linked firmware."""
    if sizes is None:
        return {**report, "flash_linked": False}
    stack = max(each["stack_bound"] for each in report.get("models", (report,)))
    ram, taken = (sizes.static_ram + room for room in (stack, max(stack, sizes.reserved_stack)))
    return {**report, "flash": sizes.flash, "ram": ram, "ram_taken": taken, "flash_linked": True}


def _flash_row(report: Mapping[str, Any]) -> tuple[str, str]:
    name = "flash" if report["flash_linked"] else "flash, estimated"
    return name, show.of(report["flash"], report["board_flash"])


def _streamed_rows(report: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What was traded for memory: a line for every chain of layers, then what it is all about, smaller workspaces, too."""
    plain = report["without_streams"]
    if plain is None:
        return []
    rows: list[tuple[str, object]] = []
    for traded in (layer["streamed"] for layer in report["layers"] if layer["streamed"]):
        work = f"{show.count(traded['extra_macs'])} multiply-accumulates more, {show.count(traded['moved_bytes'])} bytes moved"
        rows.append(("row by row", f"{len(traded['layers'])} layers from {show.layer(traded['layers'][0])}: {work}"))
    saved = plain["arena"] - report["arena"]
    change = 100 * (report["estimated_instructions"] / max(plain["instructions"], 1) - 1)
    return [
        *rows,
        (
            "  traded" if rows else "smaller workspaces",
            f"{show.count(saved)} bytes of arena for {change:+.1f} % of the instructions, estimated",
        ),
    ]


def _arithmetic_rows(data: Mapping[str, Any], sentences: Sequence[str]) -> list[tuple[str, object]]:
    """What is computed in floats, why, and what to do about it."""
    rows: list[tuple[str, object]] = []
    if data["float_macs"]:
        rows.append(("  in floats", f"{data['float_share']:.3g} %: {'; '.join(data['float_reasons'])}"))
    if data["half_weights"]:
        count, saved = (show.count(data["half_weights"] * n) for n in (1, 2))
        rows.append(("  in 16 bits", f"{count} weights, which saves {saved} bytes"))
    return [*rows, *(("  note", sentence) for sentence in sentences)]


def _tensor_rows(data: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [
        (kind, f"{t['name']}  {t['dtype']} {show.shape(t['shape'])}{_scale(t)}")
        for kind in ("input", "output")
        for t in data[f"{kind}s"]
    ]


def _scale(tensor: Mapping[str, Any]) -> str:
    if tensor["scale"] is None:
        return ""
    return f", real = {tensor['scale']:.9g} * (q - {tensor['zero_point']})"


def _operators(data: Mapping[str, Any]) -> str:
    """How often which operator occurs, the most frequent first."""
    return ", ".join(f"{n} {op}" for op, n in sorted(data["operators"].items(), key=lambda x: (-x[1], x[0])))


def check(arguments: Arguments) -> show.Answer:
    """``microc check``."""
    from microc.compiler.options import make_options
    from microc.device.boards import load_board
    from microc.project.model_check import check_model
    from microc.reports.text_tables import memory_rows

    assert arguments.model is not None
    board = load_board(arguments.board) if arguments.board else None
    options = make_options(**chosen_options(arguments))
    found = check_model(arguments.model, options, board, exact=arguments.exact)
    data = found.to_data()
    rows = [
        ("model", found.source),
        *_tensor_rows(data),
        ("operators", _operators(data)),
        ("kernels", found.kernels),
        ("multiply-accumulates", show.count(found.macs)),
        *_arithmetic_rows(data, data["advice"]),
        ("weights", f"{show.count(found.weight_bytes)} bytes, {show.count(found.least.weights)} at least in flash"),
        ("arena", f"{show.count(found.least.arena)} bytes at least; {show.count(found.live)} are alive together"),
    ]
    if found.compiled:
        rows += [*memory_rows(found.compiled["memories"]), *estimate_rows(found.compiled)]
    else:
        rows += state_rows(found.state, found.board)
    if board and board.target.npu and not options.external:
        rows.append(("accelerator", f"{board.target.npu}: --external ethos-u gives it the layers that it takes"))
    if found.verdict:
        rows.append((found.board or "budget", _verdict(found)))
    text = show.facts(rows)
    if arguments.tensors:
        data["tensors"] = list(found.tensors)
        cells = [(t["name"], t["operator"], t["dtype"], show.shape(t["shape"])) for t in found.tensors]
        text += "\n\n" + show.table(("tensor", "made by", "dtype", "shape"), cells, 4)
    return show.Answer(data, text, 4 if found.verdict == "no" else 0)


def _verdict(found: Check) -> str:
    """Whether a network fits, and how sure that is."""
    if found.verdict == "no":
        return "does not fit: " + "; ".join(found.reasons)
    if found.need is not None and found.verdict == "maybe":
        least, most = (show.count(n) for n in (found.need.least_flash, found.need.flash))
        return f"may fit: {least} to {most} bytes of flash, estimated; the board's compiler links it to know (microc doctor)"
    if found.need is None:
        return "may fit: nothing proves that it does not" + (" (--exact compiles it to know)" if found.board else "")
    estimated = "" if found.built else ", estimated"
    return f"fits: {show.count(found.need.flash)} bytes of flash{estimated}, and {show.count(found.need.ram)} of RAM"


def import_(arguments: Arguments) -> show.Answer:
    """``microc import``."""
    from microc.compiler.model import load, save
    from microc.project.model_check import describe

    assert arguments.model is not None and arguments.output is not None
    check_places(**{"-o": arguments.output})
    graph = load(arguments.model, **chosen_options(arguments))
    if arguments.features is not None:
        from microc.features import join, read

        said = read(arguments.features)
        graph = join(said.pipeline, graph, input=said.input, bands_first=said.bands_first)
    path = save(graph, arguments.output)
    data = describe(graph, arguments.model.name)
    rows = [
        ("model", f"{arguments.model.name} -> {path}, {show.count(path.stat().st_size)} bytes"),
        *_tensor_rows(data),
        ("operators", _operators(data)),
    ]
    return show.Answer({"file": str(path), **data}, show.facts(rows))


def build(arguments: Arguments) -> show.Answer:
    """``microc build``."""
    from microc.compiler.fit.footprint import capacity
    from microc.run import board_project

    project = board_project.open_project(arguments.folder)
    result = board_project.build(project)
    sizes, ram = result.sizes, result.sizes.static_ram + project.peak_stack
    rows = [
        ("firmware", result.elf),
        ("flash", show.of(sizes.flash, capacity(project.board, "flash"))),
        ("RAM", show.of(ram, capacity(project.board, "ram"))),
        ("  static and arena", f"{show.count(sizes.static_ram)} bytes"),
        ("  stack", f"{show.count(project.peak_stack)} bytes at most, {show.count(sizes.reserved_stack)} reserved"),
    ]
    network = result.network
    if network is not None:
        rows.append(("network", f"{project.blob}, {show.count(network)} bytes"))
    symbols = [(s.name, s.section, show.count(s.size)) for s in sizes.symbols[:_SHOWN_SYMBOLS]]
    text = show.facts(rows) + "\n\n" + show.table(("largest symbols", "section", "bytes"), symbols, 2)
    data = {"elf": str(result.elf), "ram": ram, "sizes": asdict(sizes), "network_bytes": network}
    return show.Answer(data, text)


def flash(arguments: Arguments) -> show.Answer:
    """``microc flash``."""
    from microc.cli.project_context import line
    from microc.reports import text_tables
    from microc.run.board_project import open_project
    from microc.run.session import flash_project

    project = open_project(arguments.folder)
    commands, answered = flash_project(project, arguments.runner, dry_run=arguments.dry_run, **line(arguments))
    runs = "takes networks: microc load" if project.relocatable else "runs this build"
    shown = [line for command in commands for line in text_tables.command(shlex.join(command), show.columns())]
    text = "\n".join(shown) + (f"\nthe board answers: it {runs}" if answered else "")
    return show.Answer(
        {
            "runner": list(commands[0]),
            "commands": [list(c) for c in commands],
            "dry_run": arguments.dry_run,
            "answered": answered,
        },
        text,
    )


Command = Callable[[Arguments], show.Answer]
COMMANDS: Registry[Command] = Registry(
    "a command",
    {
        "compile": compile_,
        "check": check,
        "explain": Later("microc.cli.reporting", "explain"),
        "import": import_,
        "quantize": Later("microc.cli.quantize", "quantize"),
        "tune": Later("microc.cli.tune", "tune"),
        "export": Later("microc.cli.projects", "export"),
        "new": Later("microc.cli.projects", "new"),
        "build": build,
        "flash": flash,
        "load": Later("microc.cli.projects", "load"),
        "run": Later("microc.cli.project_context", "run"),
        "profile": Later("microc.cli.reporting", "profile"),
        "size": Later("microc.cli.reporting", "size"),
        "verify": Later("microc.cli.verification", "verify"),
        "bench": Later("microc.cli.reporting", "bench"),
        "report": Later("microc.cli.reporting", "report"),
        "compare": Later("microc.cli.reporting", "compare"),
        "watch": Later("microc.cli.watch", "watch"),
        "boards": Later("microc.cli.catalogue", "boards"),
        "plugin": Later("microc.cli.catalogue", "plugin"),
        "operators": Later("microc.cli.catalogue", "operators"),
        "options": Later("microc.cli.catalogue", "options"),
        "completion": Later("microc.cli.completion", "completion"),
        "man": Later("microc.cli.catalogue", "man"),
        "ports": Later("microc.cli.catalogue", "ports"),
        "demo": Later("microc.cli.projects", "demo"),
        "doctor": Later("microc.cli.catalogue", "doctor"),
    },
)
"""By name, in the order of help."""
