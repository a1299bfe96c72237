"""What limits a network on its board, and what to do about it: sentences, each with the command to run where there is one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from microc.driver.report.layers import slowest
from microc.driver.report.words import shown_ms

_LARGE_SHARE, _FULL, _DEAR = 0.3, 0.85, 2.0
"""Shares of the time and of a memory that are spoken of, and how much dearer than usual a layer's products are."""
_MANY_MACS = 1000
"""Products of a layer from which on what each takes says something."""


def advice_for(data: Mapping[str, Any], known: Sequence[str] = ()) -> list[dict[str, str]]:
    """What to do, the most important first, as ``text`` and ``command`` (may be empty). ``known``: sentences of
    :mod:`microc.driver.advice`, with their command behind the last colon and space."""
    return [*map(_split, known), *_memory(data), *_time(data)]


def _split(sentence: str) -> dict[str, str]:
    text, colon, command = sentence.rpartition(": microc ")
    return {"text": text, "command": f"microc {command}"} if colon else {"text": sentence, "command": ""}


def _memory(data: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Memories that are full, or nearly."""
    board, totals = data["board"], data["totals"]
    for memory, option, way in (
        ("flash", "--optimize size", "code for size, or weights of fewer bits (microc quantize)"),
        ("ram", f"--ram {max(1, 8 * totals['arena'] // 10240)}K", "smaller workspaces and layers row by row take less"),
    ):
        used, room = totals[memory], board[memory]
        if used is not None and room and used > _FULL * room:
            name = "flash" if memory == "flash" else "RAM"
            much = f"does not fit: {used:,} bytes of {room:,}" if used > room else f"is {100 * used / room:.0f} % full"
            yield {"text": f"{name} {much}; {way}", "command": f"{_compile(data)} {option}"}


def _time(data: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The layer that takes most of the time, and one whose products are dear."""
    layers = data["layers"]
    if not layers:
        return
    top = slowest(data, 1)[0]
    if top["share"] >= _LARGE_SHARE and len(layers) > 1:
        ms = f" ({shown_ms(top['milliseconds'])}, estimated)" if top["milliseconds"] is not None else ""
        yield {
            "text": f"step {top['step']}, {top['name']}, takes {100 * top['share']:.0f} % of the time{ms}: "
            "what was tried for it, and what its loops cost",
            "command": f"microc explain {_model(data)} {top['step']}{_board(data)}",
        }
    each = sorted(layer["cycles"] / layer["macs"] for layer in layers if layer["macs"] >= _MANY_MACS)
    usual = each[len(each) // 2] if each else 0
    dear = [
        k for k in layers if k["macs"] >= _MANY_MACS and k["cycles"] > _DEAR * usual * k["macs"] and k["share"] > 0.05
    ]
    if dear and dear[0]["step"] != top["step"]:
        yield {
            "text": f"a product of step {dear[0]['step']}, {dear[0]['name']}, takes {dear[0]['cycles'] / dear[0]['macs']:.1f} "
            f"cycles, {usual:.1f} elsewhere",
            "command": f"microc explain {_model(data)} {dear[0]['step']}{_board(data)}",
        }
    if data["options"].get("optimize") == "size":
        yield {
            "text": "the code is made for size: for speed it is faster",
            "command": f"{_compile(data)} --optimize speed",
        }
    if data["board"]["name"] != "host" and not any(", tuned" in layer["rule"] for layer in layers):
        yield {
            "text": "no schedule was measured: a search on the board or its emulator finds faster ones",
            "command": f"microc tune {_model(data)}{_board(data)} --records tuned.jsonl",
        }


def _compile(data: Mapping[str, Any]) -> str:
    return f"microc compile {_model(data)}{_board(data)} -o firmware"


def _model(data: Mapping[str, Any]) -> str:
    return shlex.quote(data["source"] or data["model"])


def _board(data: Mapping[str, Any]) -> str:
    name = data["board"]["name"]
    return "" if name == "host" else f" --board {shlex.quote(name)}"
