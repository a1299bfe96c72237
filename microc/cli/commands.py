# SPDX-License-Identifier: Apache-2.0
"""The commands ``compile``, ``check``, ``import``, ``build`` and ``flash``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.operating_system import join_arguments, quote_argument
from microc.cli import show
from microc.cli.declared.board_commands import BuildArguments, FlashArguments
from microc.cli.declared.model_commands import CheckArguments, CompileCommandArguments, ImportArguments
from microc.cli.project_context import (
    check_output_paths,
    check_replaceable,
    compile_bundle,
    compile_with_arguments,
    network_names,
    progress_callback,
    serial_line_options,
)
from microc.cli.reporting import estimate_rows, rewrite_advice_commands, state_rows
from microc.document.blocks import Fact, Shell, document, facts, numbers, table, texts
from microc.errors import ToolError, UsageError

if TYPE_CHECKING:
    from microc.compiler.api import Program
    from microc.compiler.bundle import Bundle
    from microc.device.toolchain import LinkedSizes
    from microc.project.checks import ModelCheck


# ---- Rows of the summary that ``microc compile`` prints: streaming, self-test, commands to run next.


def next_command_rows(arguments: CompileCommandArguments, folder: Path, board: str) -> list[Fact]:
    """Return summary rows with the commands that the user may run next.

    These commands build and verify the project in ``folder``, and export the network for the user's own firmware."""
    folder_word, model = quote_argument(str(folder)), quote_argument(str(arguments.models[0]))
    board_flag = f" --board {quote_argument(arguments.board)}" if arguments.board else ""
    flash = "" if board == "host" else f" && microc flash {folder_word}"
    if arguments.options.get("relocatable"):
        if not folder.is_dir():
            return [("next", f"microc load {folder_word} --port PORT")]
        return [("next", f"microc build {folder_word}{flash}, once for all networks; then microc load {folder_word}")]
    return [
        ("next", f"microc build {folder_word}{flash} && microc verify {folder_word}"),
        (
            "to ship it",
            f"microc export {model}{board_flag} --format c -o DIR (microc export --list: for Arduino, CMake, Zephyr ...)",
        ),
    ]


def self_test_rows(report: Mapping[str, Any]) -> list[Fact]:
    """Return the summary row about the network's self-test; empty if the network has none."""
    self_test = report["self_test"]
    return (
        [("self-test", f"{self_test['samples']} samples, {show.format_integer(self_test['bytes'])} bytes")]
        if self_test
        else []
    )


def streaming_rows(report: Mapping[str, Any]) -> list[Fact]:
    """Return the summary rows about a streaming network; empty for other networks.

    They state the number of input frames of a run, then the number of frames and the delay of each output."""
    streaming = report["streaming"]
    if streaming is None:
        return []
    rows: list[Fact] = [("stream", f"frames a run: {streaming['hop']}")]
    for name, output in streaming["outputs"].items():
        timing = f"frames: {output['frames']}, {output['delay']} late" if output["frames"] else "of the last frames"
        rows.append((f"  {name}", f"{timing}, from run {output['first'] + 1} on"))
    return rows


# ---- The commands. Each calls the compiler, and returns its result as data (for ``--json``) and as text.

_SHOWN_SYMBOLS = 12


def run_compile_command(arguments: CompileCommandArguments) -> show.Answer:
    """Run ``microc compile``: compile one or several models into a C project, or one model into a relocatable network."""
    from microc.codegen.output_files import check_replaceable_folder
    from microc.codegen.project.protocols import BLOB_SUFFIX
    from microc.document.blocks import memory_usage_rows
    from microc.reports.report import select_printed_advice
    from microc.reports.report_document import next_steps

    if arguments.output is None:
        raise UsageError("compile needs the folder to write (-o); got none", hint="add -o DIR")
    is_network_file = arguments.output.suffix == BLOB_SUFFIX and arguments.options.get("relocatable")
    if is_network_file:
        check_output_paths(**{"-o": arguments.output})
    else:
        check_replaceable_folder(arguments.output)
    names = network_names(arguments.models, arguments.options)
    if not arguments.force and not is_network_file:
        check_replaceable(arguments.output, arguments.models, names)
    if len(arguments.models) > 1:
        return _compile_several_networks(arguments, names, arguments.output)
    program = compile_with_arguments(arguments.models[0], arguments, arguments.board)
    report_progress = progress_callback(arguments)
    if report_progress is not None:
        report_progress("C", 0, 2)
    sizes = _link_and_read_sizes(program)
    folder = program.write(arguments.output)
    if report_progress is not None:
        report_progress("report", 1, 2)
    report = _with_linked_sizes(program.report(), sizes)
    rows = [
        ("model", f"{report['source']} -> {folder} for {report['board']} ({report['cpu']})"),
        *_input_output_rows(report),
        *streaming_rows(report),
        ("kernels", f"{report['kernels']} ({report['functions']} functions)"),
        (
            "multiply-accumulates",
            f"{show.format_integer(report['macs'])} of {show.format_integer(report['nominal_macs'])} in the model",
        ),
        *_float_arithmetic_rows(report, ()),
        ("weights", f"{show.format_integer(report['weight_bytes'])} bytes"),
        (
            "arena",
            f"{show.format_integer(report['arena'])} bytes (lower bound "
            f"{show.format_integer(report['arena_lower_bound'])}, {report['planner']})",
        ),
        *memory_usage_rows(report["memories"]),
        *_low_memory_rows(report, arguments.options.get("cores", 1) > 1),
        *self_test_rows(report),
        ("in place", f"{sum(layer['in_place'] > 0 for layer in report['layers'])} kernels write over what they read"),
        _flash_row(report),
        ("RAM", show.format_capacity_use(report["ram"], report["board_ram"])),
        *estimate_rows(report),
        *next_command_rows(arguments, folder, report["board"]),
    ]
    about = {**json.loads(program.files()["manifest.json"]), "board": {"name": report["board"]}}
    advice = select_printed_advice(report["next_steps"])
    steps = rewrite_advice_commands(advice, about, arguments, arguments.models[0], arguments.output)
    return show.Answer({"folder": str(folder), "report": report}, document(facts(rows), next_steps(steps)))


def _compile_several_networks(arguments: CompileCommandArguments, names: Sequence[str], output: Path) -> show.Answer:
    """Compile several networks, whose names are given, into one firmware in the folder ``output``."""
    firmware = compile_bundle(arguments.models, names, arguments, arguments.board)
    sizes = _link_and_read_sizes(firmware)
    folder = firmware.write(output)
    report = _with_linked_sizes(firmware.report(), sizes)
    cells = [
        (
            m["model"],
            m["source"],
            m["kernels"],
            *(m[key] for key in ("macs", "weight_bytes", "arena")),
        )
        for m in report["models"]
    ]
    rows: list[Fact] = [
        ("firmware", f"{folder} for {report['board']}"),
        (
            "arena",
            f"{show.format_integer(report['arena'])} bytes, {show.format_integer(report['shared_arena'])} of them shared",
        ),
        _flash_row(report),
        ("RAM", show.format_capacity_use(report["ram"], report["board_ram"])),
    ]
    columns = (*texts("network", "model"), *numbers("kernels", "MACs", "weights", "arena"))
    return show.Answer({"folder": str(folder), "report": report}, document(table(columns, cells), facts(rows)))


def _link_and_read_sizes(program: Program | Bundle) -> LinkedSizes | None:
    """Link the firmware before anything is written, and return its sizes.

    None for the host, if the board's compiler is not installed, or if the build fails, because ``microc build`` reports that
    in full. Raises FitError if the firmware does not fit the board's memory."""
    if program.board.target.isa == "host":
        return None
    from microc.run.board_project import link_and_read_sizes

    try:
        return link_and_read_sizes(program.files(), program.board)
    except ToolError:
        return None


def _with_linked_sizes(report: Mapping[str, Any], sizes: LinkedSizes | None) -> dict[str, Any]:
    """Return the report of a compilation with estimates of flash and RAM replaced by the sizes of the linked firmware.

    ``sizes``: None if the firmware was not linked; the estimates are then kept."""
    if sizes is None:
        return {**report, "flash_linked": False}
    stack = max(model["stack_bound"] for model in report.get("models", (report,)))
    ram, taken = (sizes.static_ram + room for room in (stack, max(stack, sizes.reserved_stack)))
    return {**report, "flash": sizes.flash, "ram": ram, "ram_taken": taken, "flash_linked": True}


def _flash_row(report: Mapping[str, Any]) -> tuple[str, str]:
    """Return the summary row about flash; its name contains ``estimated`` if the firmware was not linked."""
    name = "flash" if report["flash_linked"] else "flash, estimated"
    return name, show.format_capacity_use(report["flash"], report["board_flash"])


def _low_memory_rows(report: Mapping[str, Any], uses_cores: bool) -> list[Fact]:
    """Return the summary rows about the price of saving RAM; empty if the compilation did not need to save RAM.

    There is a row for each chain of layers that runs row by row, then a row with the total of saved bytes and additional
    instructions, including those of smaller workspaces, and, if the network ``uses_cores``, of kernels left to one core."""
    unstreamed = report["without_streams"]
    if unstreamed is None:
        return []
    rows: list[Fact] = []
    for streamed in (layer["streamed"] for layer in report["layers"] if layer["streamed"]):
        macs, moved = show.format_integer(streamed["extra_macs"]), show.format_integer(streamed["moved_bytes"])
        chain = f"{len(streamed['layers'])} layers from {show.fit_layer_name(streamed['layers'][0])}"
        rows.append(("row by row", f"{chain}: {macs} multiply-accumulates more, {moved} bytes moved"))
    saved = unstreamed["arena"] - report["arena"]
    means = "smaller workspaces, or one core" if uses_cores else "smaller workspaces"
    change = 100 * (report["estimated_instructions"] / max(unstreamed["instructions"], 1) - 1)
    return [
        *rows,
        (
            "  traded" if rows else means,
            f"{show.format_integer(saved)} bytes of arena for {change:+.1f} % of the instructions, estimated",
        ),
    ]


def _float_arithmetic_rows(data: Mapping[str, Any], sentences: Sequence[str]) -> list[Fact]:
    """Return the summary rows about float arithmetic, followed by a row for each of ``sentences``.

    The rows state the share of multiply-accumulates in floats, why these are in floats, and the number of weights that are
    stored in 16 bits."""
    rows: list[Fact] = []
    if data["float_macs"]:
        rows.append(("  in floats", f"{data['float_share']:.3g} %: {'; '.join(data['float_reasons'])}"))
    if data["half_weights"]:
        count, saved = (show.format_integer(data["half_weights"] * n) for n in (1, 2))
        rows.append(("  in 16 bits", f"{count} weights, which saves {saved} bytes"))
    return [*rows, *(("  note", sentence) for sentence in sentences)]


def _input_output_rows(data: Mapping[str, Any]) -> list[Fact]:
    """Return a summary row for each input and output of a network: name, dtype, shape, and formula of real values."""
    return [
        (kind, f"{t['name']}  {t['dtype']} {show.format_shape(t['shape'])}{_real_value_formula(t)}")
        for kind in ("input", "output")
        for t in data[f"{kind}s"]
    ]


def _real_value_formula(tensor: Mapping[str, Any]) -> str:
    """Return the formula that dequantises a tensor, as text after a comma; empty if the tensor is not quantised."""
    if tensor["scale"] is None:
        return ""
    return f", real = {tensor['scale']:.9g} * (q - {tensor['zero_point']})"


def _format_operator_counts(data: Mapping[str, Any]) -> str:
    """Return the operators of a network as text: the number of occurrences of each, the most frequent first."""
    return ", ".join(f"{n} {op}" for op, n in sorted(data["operators"].items(), key=lambda x: (-x[1], x[0])))


def run_check_command(arguments: CheckArguments) -> show.Answer:
    """Run ``microc check``: test whether a model can fit a board or memory limits."""
    from microc.compiler.options import make_options
    from microc.device.boards import load_board
    from microc.document.blocks import memory_usage_rows
    from microc.project.checks import check_model

    board = load_board(arguments.board) if arguments.board else None
    options = make_options(**arguments.options)
    result = check_model(arguments.model, options, board, exact=arguments.exact)
    data = result.to_data()
    rows = [
        ("model", result.source),
        *_input_output_rows(data),
        ("operators", _format_operator_counts(data)),
        ("kernels", result.kernels),
        ("multiply-accumulates", show.format_integer(result.macs)),
        *_float_arithmetic_rows(data, data["advice"]),
        (
            "weights",
            f"{show.format_integer(result.weight_bytes)} bytes, {show.format_integer(result.least.weights)} at least in flash",
        ),
        (
            "arena",
            f"{show.format_integer(result.least.arena)} bytes at least; {show.format_integer(result.live)} are alive together",
        ),
    ]
    if result.compiled:
        rows += [*memory_usage_rows(result.compiled["memories"]), *estimate_rows(result.compiled)]
    else:
        rows += state_rows(result.state, result.board)
    if board and board.target.npu and not options.external:
        rows.append(("accelerator", f"{board.target.npu}: --external ethos-u gives it the layers that it takes"))
    if result.verdict:
        rows.append((result.board or "budget", _describe_verdict(result)))
    shown = document(facts(rows))
    if arguments.tensors:
        data["tensors"] = list(result.tensors)
        cells = [(t["name"], t["operator"], t["dtype"], show.format_shape(t["shape"])) for t in result.tensors]
        shown += document(table(texts("tensor", "made by", "dtype", "shape"), cells))
    return show.Answer(data, shown, 4 if result.verdict == "no" else 0)


def _describe_verdict(result: ModelCheck) -> str:
    """Return the verdict of ``microc check`` in words: whether the model fits, and whether that is estimated or exact."""
    if result.verdict == "no":
        return "does not fit: " + "; ".join(result.reasons)
    if result.need is not None and result.verdict == "maybe":
        least, most = (show.format_integer(n) for n in (result.need.least_flash, result.need.flash))
        return f"may fit: {least} to {most} bytes of flash, estimated; the board's compiler links it to know (microc doctor)"
    if result.need is None:
        return "may fit: nothing proves that it does not" + (" (--exact compiles it to know)" if result.board else "")
    estimated = "" if result.built else ", estimated"
    flash, ram = show.format_integer(result.need.flash), show.format_integer(result.need.ram)
    return f"fits: {flash} bytes of flash{estimated}, and {ram} of RAM"


def run_import_command(arguments: ImportArguments) -> show.Answer:
    """Run ``microc import``: convert a model to microc's graph format or to ONNX."""
    from microc.compiler.model import load, save
    from microc.project.checks import describe_graph

    check_output_paths(**{"-o": arguments.output})
    graph = load(arguments.model, **arguments.options)
    if arguments.features is not None:
        from microc.features import join, read

        stages = read(arguments.features)
        graph = join(stages.pipeline, graph, input=stages.input, bands_first=stages.bands_first)
    path = save(graph, arguments.output)
    data = describe_graph(graph, arguments.model.name)
    rows = [
        ("model", f"{arguments.model.name} -> {path}, {show.format_integer(path.stat().st_size)} bytes"),
        *_input_output_rows(data),
        ("operators", _format_operator_counts(data)),
    ]
    return show.Answer({"file": str(path), **data}, document(facts(rows)))


def run_build_command(arguments: BuildArguments) -> show.Answer:
    """Run ``microc build``: build a project's firmware, and show its memory."""
    from microc.compiler.fit.budget import region_bytes
    from microc.run import board_project

    project = board_project.open_project(arguments.folder)
    result = board_project.build_project(project)
    sizes, ram = result.sizes, result.sizes.static_ram + project.peak_stack
    rows = [
        ("firmware", str(result.elf)),
        ("flash", show.format_capacity_use(sizes.flash, region_bytes(project.board, "flash"))),
        ("RAM", show.format_capacity_use(ram, region_bytes(project.board, "ram"))),
        ("  static and arena", f"{show.format_integer(sizes.static_ram)} bytes"),
        (
            "  stack",
            f"{show.format_integer(project.peak_stack)} bytes at most, {show.format_integer(sizes.reserved_stack)} reserved",
        ),
    ]
    network = result.network
    if network is not None:
        rows.append(("network", f"{project.blob}, {show.format_integer(network)} bytes"))
    symbols = [(s.name, s.section, s.size) for s in sizes.symbols[:_SHOWN_SYMBOLS]]
    symbol_table = table((*texts("largest symbols", "section"), *numbers("bytes")), symbols)
    data = {"elf": str(result.elf), "ram": ram, "sizes": asdict(sizes), "network_bytes": network}
    return show.Answer(data, document(facts(rows), symbol_table))


def run_flash_command(arguments: FlashArguments) -> show.Answer:
    """Run ``microc flash``: flash a project's firmware, and ask the board whether it runs."""
    from microc.run.board_project import open_project
    from microc.run.session import flash_project

    project = open_project(arguments.folder)
    commands, answered = flash_project(
        project, arguments.runner, dry_run=arguments.dry_run, **serial_line_options(arguments)
    )
    runs = "takes networks: microc load" if project.relocatable else "runs this build"
    note = f"the board answers: it {runs}" if answered else ""
    return show.Answer(
        {
            "runner": list(commands[0]),
            "commands": [list(c) for c in commands],
            "dry_run": arguments.dry_run,
            "answered": answered,
        },
        document(Shell(tuple(map(join_arguments, commands)), note=note)),
    )
