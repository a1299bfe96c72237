"""``--dump DIR``: a folder for every kernel below ``DIR/kernels``, with all that ``compile/derive.py`` finds out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from microc.codegen.files import replacing_folder
from microc.codegen.text import Label, Name
from microc.driver.compile.derive import Candidate, Kernel, Part, derive_kernel
from microc.driver.compile.maker import Compiled
from microc.driver.progress import Progress
from microc.schedule.schedule import trace_to_json
from microc.target import Goal
from microc.tir.text import to_text

INDEX = "index.txt"
"""The list of kernels, by which a folder is known as one of ours."""


def dump_kernels(made: Compiled, folder: Path, progress: Progress | None = None) -> None:
    """Write ``folder/kernels``, whole or not at all; OutputError where something else is in the way.

    A function that several steps call is written for the first of them.
    """
    calls = made.module.calls
    width = len(str(len(calls)))
    with replacing_folder(folder / "kernels", INDEX, "--dump") as root:
        first: dict[str, str] = {}
        index = []
        for number, call in enumerate(calls):
            if progress is not None:
                progress(f"dump {call.op}", number, len(calls))
            name = f"{number:0{width}}_{Name(call.kernel)}"
            if call.kernel not in first:
                first[call.kernel] = name
                for path, text in kernel_files(derive_kernel(made, number)):
                    (root / name / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / name / path).write_text(text, encoding="utf-8")
            rule = f"  [{call.rule}]" if call.rule else ""
            index.append(
                f"{name if first[call.kernel] == name else f'{name} -> {first[call.kernel]}'}{rule}  {Label(call.layer)}\n"
            )
        (root / INDEX).write_text("".join(index), encoding="utf-8")


def kernel_files(kernel: Kernel) -> Iterator[tuple[str, str]]:
    """Paths and texts. Those that end with ``.tir`` parse back (:func:`microc.tir.text.from_text`), as does the trace
    (:func:`microc.schedule.schedule.trace_from_json`)."""
    if len(kernel.parts) == 1:
        yield from _part_files(kernel.parts[0], "")
    else:
        width = len(str(len(kernel.parts)))
        for number, part in enumerate(kernel.parts):
            yield from _part_files(part, f"part_{number:0{width}}_{Name(part.op)}/")
    yield "05_kernel.tir", to_text(kernel.func)
    yield "kernel.c", f"{kernel.c}\n"
    yield (
        "notes.txt",
        "".join(f"{line}\n" for line in (f"step {kernel.number}: {Label(kernel.call.layer)}", *kernel.notes)),
    )


def _part_files(part: Part, folder: str) -> Iterator[tuple[str, str]]:
    yield f"{folder}graph.txt", part.nodes
    yield f"{folder}candidates.txt", candidates_text(part)
    for group in part.algorithms:
        chosen = group.algorithm == part.start.algorithm
        suffix = "" if chosen else f"_other_{Name(group.algorithm)}"
        yield f"{folder}00_te{suffix}.txt", group.text
        yield f"{folder}01_tir{suffix}.tir", to_text(group.func)
    width = len(str(len(part.steps)))
    yield f"{folder}02_trace.json", trace_to_json(part.schedule.trace)
    for number, (step, func) in enumerate(part.steps, 1):
        yield f"{folder}03_step_{number:0{width}}_{step.primitive}.tir", to_text(func)
    for number, (name, func) in enumerate(part.stages, 1):
        yield f"{folder}04_lower_{number:02}_{name}.tir", to_text(func)


def goal_text(goal: Goal, uses: int) -> str:
    """What candidates were weighed by."""
    alike = f", {uses} kernels alike share their code" if uses > 1 else ""
    match goal.price:
        case 0.0:
            return f"for speed{alike}"
        case price if price == float("inf"):
            return f"for size{alike}"
        case price:
            return f"{goal.name}: a byte of flash is worth {price:.4g} instructions{alike}"


def candidates_text(part: Part) -> str:
    """Every candidate: what it is, what it costs, why it was not chosen, how it is scheduled."""
    return f"{goal_text(part.goal, part.uses)}\n" + "".join(map(_candidate_text, part.candidates))


def _candidate_text(candidate: Candidate) -> str:
    cost, schedule = candidate.cost, candidate.schedule
    lines = [
        "",
        f"{schedule.rule} ({candidate.algorithm}): {candidate.verdict}",
        f"  {cost.instructions:,.0f} instructions, {cost.cycles:,.0f} cycles, {cost.code_bytes:,} bytes of code, "
        f"{candidate.constants:,} of constants; weighs {candidate.weight:,.0f}",
        *(f"  without {refused}" for refused in schedule.refused),
        *(f"  {step}" for step in schedule.trace),
    ]
    return "".join(f"{line}\n" for line in lines)
