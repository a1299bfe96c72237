"""``microc demo``: the digits network on an emulated microcontroller."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import progress
from microc.errors import VerificationError

if TYPE_CHECKING:
    from microc.driver.demo import Demonstration

_SHOWN, _PER_ROW, _ACROSS = 8, 4, 20
"""Images that are shown, beside each other at most, and letters that one takes across with its caption."""
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .+%@"
_BAR = 30


def demo(arguments: Arguments) -> show.Answer:
    """``microc demo``."""
    from microc.driver.demo import choose_board, demonstrate

    board, missing = (arguments.board, ()) if arguments.board else choose_board()
    found = demonstrate(board, progress(arguments))
    data = {
        "board": board,
        "missing": list(missing),
        "model": found.report["source"],
        "macs": found.report["macs"],
        "samples": len(found.labels),
        "correct": found.right,
        "accuracy": found.right / len(found.labels),
        "reference_accuracy": found.reference,
        "flash": found.sizes.flash,
        "ram": found.ram,
        "arena": found.report["arena"],
        "stack": found.stats.stack_bytes or None,
        "unit": found.clock.unit,
        "time": found.clock.amount(sum(found.ticks)),
        "seconds": found.line_seconds,
    }
    error = None
    if not found.passed:
        error = VerificationError("the board is less accurate than the reference", where=board, hint="microc doctor")
    return show.Answer(data, "\n".join(_lines(found, missing)), error=error)


def _lines(found: Demonstration, missing: tuple[str, ...]) -> Iterator[str]:
    report, sizes = found.report, found.sizes
    if missing:
        yield f"{' and '.join(missing)} not found: using this computer instead of the emulated board (microc doctor --fix)"
    yield f"\n  {report['source']}: {report['kernels']} kernels, {report['macs']:,} multiply-accumulates"
    yield f"  {found.title}"
    yield f"  compiled to C in {found.compiled_seconds:.1f} s, built in {found.built_seconds:.1f} s\n"
    room = show.columns() // _ACROSS if show.columns() else _PER_ROW
    beside = max(1, min(_PER_ROW, room))
    for first in range(0, _SHOWN, beside):
        yield from _drawn(found, range(first, min(first + beside, _SHOWN)))
    yield from _layers(found)
    total, stack = len(found.labels), found.stats.stack_bytes
    deep = f"{stack:,} measured" if stack else "not measured"
    share, needed = 100 * found.right / total, 100 * found.reference
    yield f"  accuracy   {found.right} of {total}, {share:.2f} %; the reference has {needed:.2f} %"
    yield f"  flash      {sizes.flash:,} bytes, {report['weight_bytes']:,} of them weights and tables"
    yield f"  RAM        {found.ram:,} bytes: arena {report['arena']:,}, stack {report['stack_bound']:,} at most ({deep})"
    yield f"  line       {total} images in {found.line_seconds:.1f} s, {found.stats.bad_frames} damaged frames"
    yield "\n  passed" if found.passed else "\n  FAILED: less accurate than the reference"


def _drawn(found: Demonstration, which: range) -> Iterator[str]:
    """Images side by side, two characters a pixel, each above what the board sees in it."""
    shades = _SHADES if (sys.stdout.encoding or "").lower().startswith("utf") else _PLAIN_SHADES
    levels = [(found.images[k].reshape(8, 8).astype(int) + 128) * len(shades) // 256 for k in which]
    for row in range(8):
        yield ("  " + "  ".join("".join(2 * shades[level] for level in one[row]) for one in levels)).rstrip()
    yield ("  " + "  ".join(f"{_caption(found, k):16}" for k in which)).rstrip() + "\n"


def _caption(found: Demonstration, k: int) -> str:
    answer, truth = found.answers[k], found.labels[k]
    sure = 100 * (int(found.scores[k].max()) + 128) / 256
    return f"{answer} ({sure:.0f} %) {'right' if answer == truth else f'wrong: {truth}'}"


def _layers(found: Demonstration) -> Iterator[str]:
    """Time by layer. Emulation counts instructions, not cycles."""
    numbers = [found.clock.amount(t) for t in found.ticks]
    layers = [k["layer"].split(" ", 1)[-1] for k in found.kernels]
    width = max(map(len, layers))
    yield f"  {'layer':{width}}  {found.clock.unit:>12}      MACs"
    for layer, kernel, number in zip(layers, found.kernels, numbers, strict=True):
        yield _row(layer, width, number, kernel["macs"]) + "  " + "#" * round(_BAR * number / max(*numbers, 1))
    yield _row("one image", width, sum(numbers), sum(k["macs"] for k in found.kernels)) + "\n"


def _row(name: str, width: int, number: int, macs: Any) -> str:
    return f"  {name:{width}}  {number:12,}  {macs:8,}"
