# SPDX-License-Identifier: Apache-2.0
"""Draw the five pictures of docs/how_it_works.md: ``python -m scripts.site.explain_pictures``.

They are drawings by hand, in the reports' colours, on a card of their own so that they can be read on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType

from benchmarks.charts import FONT, read_palette

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
COLOURS = read_palette(dark=False)
WIDTH = 720
Box = tuple[float, float, float, float]
"""Left, top, width, height."""


def draw_stages() -> str:
    """The stages of a compilation, as boxes with what each holds."""
    stages = (
        ("model file", "TFLite, ONNX, ...", "const"),
        ("graph", "exact integers", "input"),
        ("groups", "a kernel each", "intermediate"),
        ("kernels", "loops, scheduled", "workspace"),
        ("C project", "one arena", "output"),
    )
    parts = []
    for k, (title, note, colour) in enumerate(stages):
        x = 16 + k * 140
        parts.append(box((x, 40, 122, 64), title, note, colour))
        if k:
            parts.append(arrow(x - 18, 72, x - 2, 72))
    for k, verb in enumerate(("read", "fuse", "schedule", "print")):
        parts.append(text(16 + 131 + k * 140, 30, verb, "soft", anchor="middle"))
    return svg(122, "From a model file over a graph, groups and scheduled kernels to a C project", parts)


def draw_loops() -> str:
    """A dense layer: a row of data, a matrix of weights, a row of sums."""
    parts = [text(16, 30, "data: 1 x 96, int8"), text(300, 30, "weight: 10 x 96, int8"), text(584, 30, "acc: 1 x 10")]
    parts += [cell(16 + k * 20, 44, "input") for k in range(12)]
    parts += [cell(300 + k * 20, 44 + o * 20, "const") for k in range(12) for o in range(5)]
    parts += [cell(584, 44 + o * 20, "output") for o in range(5)]
    parts += [outline((16, 44, 240, 20)), outline((300, 64, 240, 20)), outline((584, 64, 20, 20))]
    parts += [text(278, 79, "·", size=22, anchor="middle"), text(562, 79, "=", size=18, anchor="middle")]
    parts.append(text(16, 172, "for k: acc[p, o] += data[p, k] * weight[o, k]", mono=True))
    return svg(190, "A dense layer as loops: a row of data times a row of weights is one sum", parts)


def draw_schedules() -> str:
    """Candidates of the first convolution of the demo's network on a Cortex-M4, from ``candidates.txt`` of ``--dump``."""
    candidates = (
        ("rows", 52_999),
        ("generic", 42_983),
        ("matrix", 23_067),
        ("matrix dsp", 17_559),
        ("depthwise", 15_135),
        ("depthwise dsp", 8_145),
    )
    chosen, most = min(count for _, count in candidates), max(count for _, count in candidates)
    parts = [text(16, 26, "rule", "soft"), text(150, 26, "estimated instructions of conv1 on a Cortex-M4", "soft")]
    for k, (name, count) in enumerate(candidates):
        y = 38 + k * 30
        colour, line = ("strong", "strong") if count == chosen else ("input", "input-line")
        parts.append(text(16, y + 15, name))
        parts.append(rectangle((150, y, round(400 * count / most), 20), colour, line))
        note = f"{count:,}{', chosen' if count == chosen else ''}"
        parts.append(text(160 + round(400 * count / most), y + 15, note))
    return svg(
        228,
        "Six candidate schedules of a kernel with bars of their estimated instructions; the shortest is chosen",
        parts,
    )


def draw_arena() -> str:
    """Tensors in the arena over the steps of a network."""
    tensors = (
        (0, 2, 0, 30, "input", "image"),
        (0, 3, 30, 80, "intermediate", "conv1"),
        (1, 1, 110, 24, "workspace", "scratch"),
        (2, 3, 0, 30, "intermediate", "depthwise2"),
        (3, 3, 30, 56, "intermediate", "pointwise3"),
        (4, 2, 86, 40, "intermediate", "conv4"),
        (5, 1, 0, 24, "output", "probabilities"),
    )
    parts = [text(16, 20, "bytes of the arena"), text(704, 196, "steps", anchor="end")]
    for first, count, offset, size, colour, name in tensors:
        area = (16 + first * 115, 170 - offset - size, count * 115 - 4, size)
        parts += [rectangle(area, colour, f"{colour}-line"), text(area[0] + 6, area[1] + 15, name, size=12)]
    parts.append(f'<path d="M16 172H704M16 36H704" stroke="{COLOURS["arena"]}" stroke-dasharray="5 3"/>')
    return svg(
        208,
        "The arena over time: tensors are rectangles that reuse the bytes of others which are no longer needed",
        parts,
    )


def draw_verify() -> str:
    """Computer and board, compared after every kernel."""
    parts = [
        box((16, 24, 120, 52), "computer", "same C, portable", "input"),
        box((16, 118, 120, 52), "board", "same C", "output"),
    ]
    for k in range(4):
        x = 166 + k * 136
        differs = k == 3
        parts += [
            rectangle((x, 30, 100, 40), "intermediate", "intermediate-line"),
            text(x + 50, 55, f"kernel {k}", anchor="middle"),
        ]
        colour = "output" if differs else "intermediate"
        parts += [
            rectangle((x, 124, 100, 40), colour, f"{colour}-line"),
            text(x + 50, 149, f"kernel {k}", anchor="middle"),
        ]
        parts += [arrow(x - 28, 50, x - 3, 50), arrow(x - 28, 144, x - 3, 144)]
        parts.append(
            text(
                x + 50,
                102,
                "differs: here" if differs else "identical",
                "arena" if differs else "good",
                anchor="middle",
            )
        )
    return svg(
        192,
        "Computer and board run the same kernels; tensors are compared after each, and the first difference is named",
        parts,
    )


PICTURES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "stages": draw_stages,
        "loops": draw_loops,
        "schedules": draw_schedules,
        "arena": draw_arena,
        "verify": draw_verify,
    }
)


def svg(height: int, title: str, parts: Sequence[str]) -> str:
    """A picture on a card of its own."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{COLOURS["card"]}"/>',
            *parts,
            "</svg>",
            "",
        )
    )


def box(area: Box, title: str, note: str, colour: str) -> str:
    x, y, width, height = area
    middle = x + width / 2
    lines = (
        rectangle(area, colour, f"{colour}-line"),
        text(middle, y + height / 2 - 3, title, size=14, anchor="middle"),
        text(middle, y + height / 2 + 15, note, size=12, anchor="middle"),
    )
    return "\n".join(lines)


def rectangle(area: Box, fill: str, stroke: str) -> str:
    x, y, width, height = area
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{COLOURS[fill]}" '
        f'stroke="{COLOURS[stroke]}"/>'
    )


def cell(x: float, y: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="20" height="20" fill="{COLOURS[colour]}" stroke="{COLOURS[colour + "-line"]}"/>'


def outline(area: Box) -> str:
    x, y, width, height = area
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="none" stroke="{COLOURS["ink"]}" '
        'stroke-width="2.5"/>'
    )


def arrow(x0: float, y0: float, x1: float, y1: float) -> str:
    head = f"M{x1 - 6:g} {y1 - 4:g}L{x1:g} {y1:g}L{x1 - 6:g} {y1 + 4:g}"
    return f'<path d="M{x0:g} {y0:g}L{x1:g} {y1:g}{head}" fill="none" stroke="{COLOURS["soft"]}" stroke-width="1.5"/>'


def text(
    x: float, y: float, words: str, colour: str = "ink", size: float = 13, anchor: str = "start", mono: bool = False
) -> str:
    font = "ui-monospace, 'DejaVu Sans Mono', monospace" if mono else FONT
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" font-family="{font}" fill="{COLOURS[colour]}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
