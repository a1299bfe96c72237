"""MVE's windows over halves: a row's three taps in registers while its pixels are loaded, each once for all its products."""

from __future__ import annotations

from collections.abc import Iterator

from microc.isa.base import Body, Turns
from microc.isa.vocabulary.half_windows import HALF_WINDOWS, TAPS, half_window_name

_WEIGHTS, _PIXEL = ("q4", "q5", "q6"), "q7"
_REGISTERS = {
    "row": "r0",
    "tap": "r1",
    "next": "r2",
    "left": "r3",
    "pixel_bytes": "r4",
    "row_bytes": "r5",
    "where": "r6",
}


def _lines(stride: int, pixels: int) -> Iterator[str]:
    """Rows of taps, one after the other."""
    yield from (f"vmov.i32 q{x}, #0" for x in range(pixels))
    yield from ("0:", "mov %[next], %[row]", "add %[row], %[row], %[row_bytes]")
    for weights in _WEIGHTS:
        yield from (f"vldrh.u16 {weights}, [%[tap]]", "add %[tap], %[tap], %[pixel_bytes]")
    for place in range((pixels - 1) * stride + TAPS):
        used = [(x, place - x * stride) for x in range(pixels) if 0 <= place - x * stride < TAPS]
        yield from (f"vldrh.u16 {_PIXEL}, [%[next]]",) if used else ()
        yield "add %[next], %[next], %[pixel_bytes]"
        yield from (f"vfma.f16 q{x}, {_PIXEL}, {_WEIGHTS[tap]}" for x, tap in used)
    yield from ("subs %[left], %[left], #1", "bne 0b")
    yield from (f"vstrh.16 q{x}, [%[where], #{16 * x}]" for x in range(pixels))


def _body(stride: int, pixels: int) -> Body:
    values = {
        "row": "a",
        "tap": "b",
        "left": "rows",
        "pixel_bytes": "2 * step",
        "row_bytes": "2 * row_step",
        "where": "sums",
    }
    kinds = {"row": "const uint16_t *", "tap": "const uint16_t *", "next": "const uint16_t *", "where": "uint16_t *"}
    text = [
        f'register {kinds.get(name, "int32_t ")}{name} __asm__("{register}"){f" = {values[name]}" if name in values else ""};'
        for name, register in _REGISTERS.items()
    ]
    lines = list(_lines(stride, pixels))
    clobbers = ", ".join(f'"{name}"' for name in ("cc", "memory", *(f"q{x}" for x in range(pixels)), *_WEIGHTS, _PIXEL))
    moved = ", ".join(
        f'[{name}] "{how}"({name})' for name, how in (("row", "+r"), ("tap", "+r"), ("left", "+r"), ("next", "=&r"))
    )
    given = ", ".join(f'[{name}] "r"({name})' for name in ("pixel_bytes", "row_bytes", "where"))
    text += ["__asm__ volatile inline(", *(f'    "{line}\\n"' for line in lines), f"    : {moved}", f"    : {given}"]
    text.append(f"    : {clobbers});")
    loads = sum(line.startswith("vldr") for line in lines)
    turn = (("vector_load", loads), ("vector", TAPS * pixels), ("alu", loads + 3), ("branch", 1))
    edges = (("alu", 8), ("vector", pixels), ("vector_store", pixels))
    return Body("\n".join(text), edges, Turns("rows", 1, turn))


WINDOW_BODIES = {half_window_name(*shape): _body(*shape) for shape in HALF_WINDOWS}
