"""What limits a network, and next steps ranked by their gain."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.compiler import option_values as meaning
from microc.compiler.fit.budget import larger_boards
from microc.compiler.options import OPTIONS, Options
from microc.compiler.pipeline import compile_model
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.isa import CORES
from microc.module import Arithmetic
from microc.ops.attributes import Ties
from microc.reports.layers import slowest
from microc.reports.text_tables import shown_ms
from microc.target import Board, Target, target_for

# ---- What to do about a network that is slower on a core than it could be, as sentences with the command to run.
#
# Factors are the cost model's, of one layer in each arithmetic on the core in question: a pointwise convolution.

WORTHWHILE = 1.2
"""Times faster that integers must be to be spoken of."""
_PIXELS, _CHANNELS = 16, 32
_SCALE = Quant((0.0371,), (3,))
_WEIGHT_SCALE = Quant((0.0113,), (0,))


@frozen
class Speeds:
    """Estimated instructions on a core: of a layer in floats over those of it in int8, what a result scaled by a float takes more
    than one in fixed point, and what a dequantised number takes."""

    times: float
    scaling: float
    dequantizing: float


def advice(found: Arithmetic, source: str, target: Target, requantize: str) -> tuple[str, ...]:
    """Sentences for a network on a core; none for this computer, which only tries what boards will do.

    ``source``: the model as commands take it. ``requantize``: the option that it is compiled with.
    """
    if target.cpu == "host" or not (found.float_macs or found.float_scaled):
        return ()
    speeds, told = speeds_on(target.cpu), list[str]()
    if found.float_macs and speeds.times >= WORTHWHILE:
        core = "this core has no FPU" if not target.has("fpu") else f"the core is a {target.cpu}"
        what = "int8" if found.float_macs == found.macs else "its layers of floats in int8"
        told.append(
            f"{core}: {what} would be about {speeds.times:.{0 if speeds.times >= 9.5 else 1}f} times faster: "
            f"microc quantize {shlex.quote(source)} --data SAMPLES -o {shlex.quote(str(Path(source).with_suffix('.mcg')))}"
        )
    saved = round(found.float_scaled * speeds.scaling)
    if saved > 0 and requantize == "float":
        told.append(
            f"{found.float_scaled:,} results are scaled by floats: --requantize fixed saves about {saved:,} instructions "
            "of a run, and differs for ties alone, some in a million"
        )
    return tuple(told)


def arithmetic_data(found: Arithmetic, sentences: tuple[str, ...]) -> dict[str, Any]:
    """Plain data: multiply-accumulates in floats, their percentage of those that are left to do, why, and what to do."""
    share = 100 * found.float_macs / max(1, found.macs)
    return {
        "float_macs": found.float_macs,
        "float_share": share,
        "float_reasons": list(found.reasons),
        "half_weights": found.half_weights,
        "double_weights": found.double_weights,
        "advice": [*sentences, *notes(found)],
    }


def notes(found: Arithmetic) -> tuple[str, ...]:
    """Sentences about weights that take more bytes than they need."""
    return (*_double(found.double_weights), *map(_wide, found.wide_weights))


def _double(count: int) -> tuple[str, ...]:
    """What is said of bytes that take two."""
    if not count:
        return ()
    return (
        f"{count:,} weights of a byte and a zero point are nine bits and take two bytes: symmetric ones (int8, or uint8 around "
        f"128) save {count:,} bytes of flash",
    )


def _wide(name: str) -> str:
    """What is said of weights that no half holds."""
    return f"{name} stays float32: it has numbers from 65,520 on, which bfloat16 holds and float16 does not"


@cache
def speeds_on(cpu: str) -> Speeds:
    """How fast a core is in each arithmetic."""
    floats, exact, fixed = (
        compile_model(_layer(integers), target_for(cpu), Options(requantize=requantize)).instructions
        for integers, requantize in ((False, "float"), (True, "float"), (True, "fixed"))
    )
    count = _PIXELS * _CHANNELS
    net = GraphBuilder()
    reals = net.graph("reals", {"y": _reals(net, net.input("x", (1, count), "int8"), _SCALE)})
    dequantized = compile_model(reals, target_for(cpu), Options()).instructions
    return Speeds(floats / fixed, (exact - fixed) / count, dequantized / count)


def _layer(integers: bool) -> Graph:
    """A pointwise convolution of floats, or of int8 as ONNX's quantisers write it."""
    net = GraphBuilder()
    weight = np.random.default_rng(0).integers(-127, 128, (_CHANNELS, 1, 1, _CHANNELS)).astype(np.int8)
    x = net.input("x", (1, 1, _PIXELS, _CHANNELS), "int8" if integers else "float32")
    if integers:
        reals = net.new_constant("weight", weight)
        x, reals = _reals(net, x, _SCALE), _reals(net, reals, _WEIGHT_SCALE)
    else:
        reals = net.new_constant("weight", weight.astype(np.float32))
    y = net.op("conv2d", x, reals, padding=(0, 0, 0, 0), layout="NHWC")
    if integers:
        scale, zero = _SCALE.scale, _SCALE.zero_point
        y = net.op("quantize", y, scale=scale, zero_point=zero, axis=None, out_dtype="int8", rounding=Ties.EVEN)
    return net.graph("layer", {"y": y})


def _reals(net: GraphBuilder, stored: str, quant: Quant) -> str:
    return net.op("dequantize", stored, scale=quant.scale, zero_point=quant.zero_point, axis=None)


# ---- Next steps for a network on its board: a table of advices, ranked by the share of the time that each may save.
#
# What does not fit is first, for nothing else counts there; then gains, the largest first; then what has no gain that is known.

LEAST = 0.005
"""Share of the time below which a gain is not spoken of."""
MOST_OF_IT, _FULL, _DEAR, _LITTLE = 0.3, 0.85, 2.0, 0.05
"""Shares of the time and of a memory that are spoken of, how much dearer than usual a layer's products are, and the share of the
time below which that does not matter."""
_MEMORIES: Mapping[str, str] = {"flash": "flash", "ram": "RAM"}
_MANY_MACS = 1000
"""Products of a layer from which on what each takes says something."""
OF_SPEED: Mapping[str, Mapping[str, float]] = {
    "size": {"cortex-m0": 0.40, "cortex-m0plus": 0.40, "rv32imc": 0.28, "cortex-m4": 0.09, "": 0.05},
    "balanced": {"cortex-m4": 0.04, "cortex-m7": 0.04, "cortex-m33": 0.04, "": 0.0},
}
"""Share of the time that ``--optimize speed`` saves, by the goal before and the core; ``""``: of all others. The mean of MLPerf
Tiny's four networks in int8, by estimated cycles; measure again when rules or costs change."""
OF_TUNING: Mapping[str, float] = {
    "cortex-m0": 0.002, "cortex-m0plus": 0.002, "cortex-m3": 0.03, "cortex-m4": 0.017, "cortex-m7": 0.017,
    "cortex-m33": 0.017, "cortex-m55": 0.007, "rv32imc": 0.038, "": 0.02,
}  # fmt: skip
"""Share of the time of kernels without a schedule that came along that a search saves at best, by core: docs/tuning.md, "What
searches found"."""


@frozen
class Advice:
    """A sentence, the command that does it (empty: none does), and the share of the time that it may save, estimated; None where
    that is not known, and infinity for what has to be done before the network runs at all."""

    text: str
    command: str = ""
    gain: float | None = None

    @property
    def rank(self) -> float:
        """Sort key of an advice, the least first."""
        return inf if self.gain is None else -self.gain

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        known = self.gain is not None and self.gain < inf
        text = f"saves about {_percent(self.gain or 0)} of the time: {self.text}" if known else self.text
        return {"text": text, "command": self.command, "gain": self.gain if known else None}


@frozen
class Situation:
    """A network on a board: the report's ``data``; ``code_in_ram``: share of the time that this would save."""

    data: Mapping[str, Any]
    board: Board
    code_in_ram: float = 0.0

    @property
    def layers(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.data["layers"]
        return found

    @property
    def cpu(self) -> str:
        return str(self.data["board"]["cpu"])

    @property
    def is_computer(self) -> bool:
        """True on this computer, which only tries what boards will do."""
        return bool(self.data["board"]["name"] == "host")

    def option(self, name: str, default: str) -> str:
        """An option of the compilation, in words."""
        return str(self.data["options"].get(name, default))

    def dtype(self, tensor: str) -> str:
        """The dtype of a tensor by its name."""
        return next(str(each["dtype"]) for each in self.data["tensors"] if each["name"] == tensor)

    def wish(self, end: str, tensor: Mapping[str, Any], dtype: str) -> str:
        """The word that gives an input or output another dtype: with its name where there are others, or a wish before."""
        alone = len(self.data[f"{end}s"]) == 1 and not self.option(f"{end}_dtype", "")
        return shlex.quote(dtype if alone else f"{tensor['label']}={dtype}")

    def compile(self, *more: str) -> str:
        """The command that compiles the network, with more options."""
        words = f"{option_words(self.data)} {' '.join(more)} -o firmware"
        return f"microc compile {model_words(self.data)}{_join_flags(_parts(shlex.split(words)))}"

    def command(self, name: str, *more: str) -> str:
        """A command about the model on its board under its options."""
        return " ".join((f"microc {name} {model_words(self.data)}", *more)) + option_words(self.data)


def advice_for(situation: Situation, notes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rank the advices that apply; an advice: ``text``, ``command`` (may be empty), ``gain`` (None: not known). ``notes``:
    sentences that are shown behind it."""
    found = [each for condition in ADVICES for each in condition(situation)]
    spoken = [each for each in found if each.gain is None or each.gain >= LEAST]
    return [each.to_data() for each in (*sorted(spoken, key=lambda each: each.rank), *map(Advice, notes))]


# ---------------------------------------------------------------- the advices


def _memories(at: Situation) -> Iterator[Advice]:
    """Memories that are too small, for which a compilation has tried all that it can, or nearly full."""
    totals, board = at.data["totals"], at.data["board"]
    over = {
        memory: totals[memory] or 0 for memory in ("flash", "ram") if (totals[memory] or 0) > (board[memory] or inf)
    }
    for memory, used in over.items():
        larger = next(larger_boards(totals["flash"] or 0, totals["ram"] or 0, board["name"]), "")
        yield Advice(
            f"{_MEMORIES[memory]} does not fit: {used:,} bytes of {board[memory]:,}; "
            + (f"{larger} has more" if larger else "no board that is known has more: choose a smaller network"),
            at.compile(f"--board {larger}") if larger else "",
            inf,
        )
    if not over:
        yield from _nearly_full(at)


def _nearly_full(at: Situation) -> Iterator[Advice]:
    """Advise options that take less of a memory."""
    totals, board = at.data["totals"], at.data["board"]
    less = 8 * totals["arena"] // 10240
    ways = {
        "flash": ("--optimize size", "code for size takes less", at.option("optimize", "balanced") != "size"),
        "ram": (f"--ram {less}K", "smaller workspaces and layers row by row may take less", less > 0),
    }
    for memory, (option, way, possible) in ways.items():
        used, room = totals[memory] or 0, board[memory]
        if possible and room and used > _FULL * room:
            yield Advice(f"{_MEMORIES[memory]} is {100 * used / room:.0f} % full; {way}", at.compile(option))


def _input_types(at: Situation) -> Iterator[Advice]:
    """Inputs that come as floats and are quantised at once by a kernel of their own."""
    for tensor in at.data["inputs"]:
        using = [layer for layer in at.layers if tensor["name"] in layer["inputs"]]
        if len(using) == 1 and using[0]["op"] == "quantize" and len(using[0]["outputs"]) == 1:
            dtype = at.dtype(using[0]["outputs"][0])
            yield Advice(
                f"input {tensor['label']} comes as {tensor['dtype']} and the board quantises it: give it as {dtype}",
                at.compile(f"--input-dtype {at.wish('input', tensor, dtype)}"),
                using[0]["share"],
            )


def _output_types(at: Situation) -> Iterator[Advice]:
    """Outputs that are dequantised last, by kernels of their own or at the end of others."""
    for tensor in at.data["outputs"]:
        making = [layer for layer in at.layers if tensor["name"] in layer["outputs"]]
        used = any(tensor["name"] in layer["inputs"] for layer in at.layers)
        if at.is_computer or used or len(making) != 1 or making[0]["op"].split("+")[-1] != "dequantize":
            continue
        took = prod(tensor["shape"]) * speeds_on(at.cpu).dequantizing / (at.data["totals"]["instructions"] or 1)
        alone = making[0]["op"] == "dequantize"
        before = dict(making[0]["operators"][-2]["attributes"]) if len(making[0]["operators"]) > 1 else {}
        dtype = at.dtype(making[0]["inputs"][0]) if alone else before.get("out_dtype", "int8")
        yield Advice(
            f"output {tensor['label']} is made {tensor['dtype']} by the board: take the {dtype} that it is made from",
            at.compile(f"--output-dtype {at.wish('output', tensor, dtype)}"),
            making[0]["share"] if alone else min(took, making[0]["share"]),
        )


def _integers(at: Situation) -> Iterator[Advice]:
    """Layers of floats that int8 would make faster."""
    kinds = {tensor["name"]: tensor["dtype"] for tensor in at.data["tensors"]}
    floats = [k for k in at.layers if k["macs"] and k["inputs"] and dtypes.is_float(kinds[k["inputs"][0]])]
    if at.is_computer or not floats:
        return
    times = speeds_on(at.cpu).times
    if times < WORTHWHILE:
        return
    core = f"the core is a {at.cpu}" if "fpu" in CORES[at.cpu].has else "this core has no FPU"
    what = "int8" if sum(k["macs"] for k in floats) == at.data["totals"]["macs"] else "its layers of floats in int8"
    source = at.data["source"] or at.data["model"]
    yield Advice(
        f"{core}: {what} would be about {times:.{0 if times >= 9.5 else 1}f} times faster",
        f"microc quantize {model_words(at.data)} --data SAMPLES -o {shlex.quote(str(Path(source).with_suffix('.mcg').name))}",
        sum(k["share"] for k in floats) * (1 - 1 / times),
    )


def _fixed_point(at: Situation) -> Iterator[Advice]:
    """Results that are scaled by floats."""
    if at.is_computer or at.option("requantize", "float") != "float":
        return
    sizes = {tensor["name"]: prod(tensor["shape"]) for tensor in at.data["tensors"]}
    scaled = [layer for layer in at.layers if "requantize_float" in layer["op"].replace(" > ", "+").split("+")]
    count = sum(sizes[name] for layer in scaled for name in layer["outputs"])
    if count:
        saved = count * max(speeds_on(at.cpu).scaling, 0)
        yield Advice(
            f"{count:,} results are scaled by floats: --requantize fixed differs for ties alone, some in a million",
            at.compile("--requantize fixed"),
            min(saved / (at.data["totals"]["instructions"] or 1), sum(layer["share"] for layer in scaled)),
        )


def _goal(at: Situation) -> Iterator[Advice]:
    """Code that is made for less than speed."""
    goal = at.option("optimize", "balanced")
    known = OF_SPEED.get(goal, {"": 0.0})
    gain = 0.0 if at.is_computer else known.get(at.cpu, known[""])
    if gain:
        yield Advice(
            f"the code is made for {'size' if goal == 'size' else 'a balance of speed and size'}: for speed it takes more flash",
            at.compile("--optimize speed"),
            gain,
        )


def _code_in_ram(at: Situation) -> Iterator[Advice]:
    """Code that waits for its flash, on a board with a faster memory for it."""
    if at.code_in_ram and at.option("code_in_ram", "False") == "False":
        yield Advice(
            "the core waits for the code of some kernels, which may run from RAM",
            at.compile("--code-in-ram"),
            at.code_in_ram,
        )


def _tuning(at: Situation) -> Iterator[Advice]:
    """Kernels whose schedules nobody measured, neither here nor for what comes with the compiler."""
    unknown = [k for k in at.layers if not k.get("shipped") and not k["rule"].startswith("external")]
    share = sum(k["share"] for k in unknown if ", tuned" not in k["rule"] and ", shipped" not in k["rule"])
    if not at.is_computer:
        yield Advice(
            f"no schedule was measured for kernels that take {_percent(share)} of the time: a search on the board or its "
            "emulator may find faster ones",
            at.command("tune", "--records tuned.jsonl"),
            share * OF_TUNING.get(at.cpu, OF_TUNING[""]),
        )


def _accelerator(at: Situation) -> Iterator[Advice]:
    """An accelerator that does nothing."""
    if at.board.target.npu and not any(layer["rule"].startswith("external") for layer in at.layers):
        yield Advice(
            f"the board's accelerator ({at.board.target.npu}) does nothing: it takes the layers that Vela compiles",
            at.compile("--external ethos-u"),
        )


def _slow_layers(at: Situation) -> Iterator[Advice]:
    """The layer that takes most of the time, and one whose products are dear."""
    if len(at.layers) < 2:
        return
    (top,) = slowest(at.data, 1)
    if top["share"] > MOST_OF_IT:
        ms = (
            f" ({shown_ms(top['milliseconds'])}, estimated)"
            if top["milliseconds"] is not None and at.data["measured"] is None
            else ""
        )
        yield Advice(
            f"step {top['step']}, {top['name']}, takes {_percent(top['share'])} of the time{ms}: "
            "what was tried for it, and what its loops cost",
            at.command("explain", str(top["step"])),
        )
    large = [layer for layer in at.layers if layer["macs"] >= _MANY_MACS]
    each = sorted(layer["cycles"] / layer["macs"] for layer in large)
    usual = each[len(each) // 2] if each else 0
    dear = [k for k in large if k["cycles"] > _DEAR * usual * k["macs"] and k["share"] > _LITTLE]
    if dear and (dear[0]["step"] != top["step"] or top["share"] <= MOST_OF_IT):
        yield Advice(
            f"a product of step {dear[0]['step']}, {dear[0]['name']}, takes {dear[0]['cycles'] / dear[0]['macs']:.1f} "
            f"cycles, {usual:.1f} elsewhere: why",
            at.command("explain", str(dear[0]["step"])),
        )


_WORDS = (meaning.wish, meaning.shape, meaning.parse_axis, meaning.feedback, meaning.renaming)
"""Meanings of words that reports have as flags take them."""
_NAMED = frozenset(
    option.flag
    for option in OPTIONS.values()
    if option.word in (*_WORDS, meaning.parse_bound, meaning.parse_pixels, meaning.parse_normalization)
)
_LISTS = frozenset(
    option.flag for option in OPTIONS.values() if option.word in (meaning.names, meaning.path, meaning.parse_external)
)
"""Flags that are given several times: one for each name, and those that add to a list."""
_OF_OPTIONS = frozenset({"compile", "explain", "tune"})
"""Commands that take the options of a compilation."""

ADVICES: tuple[Callable[[Situation], Iterator[Advice]], ...] = (
    _memories, _input_types, _output_types, _integers, _fixed_point, _goal, _code_in_ram, _tuning, _accelerator, _slow_layers,
)  # fmt: skip
"""All that may be advised; of equal gains the first comes first."""


# ---------------------------------------------------------------- words of commands


def rewrite_command(
    advice: Mapping[str, Any], data: Mapping[str, Any], model: str, options: Sequence[str] | None
) -> dict[str, Any]:
    """An advice of a report's data whose command names the ``model`` by its path, and has the user's own ``options`` (None: those
    that it has)."""
    if not advice["command"]:
        return dict(advice)
    _, name, _, *words = shlex.split(advice["command"])
    known = [] if options is None else _parts(shlex.split(option_words(data)))
    parts = [part for part in _parts(words) if part not in known]
    at = len([part for part in parts if not part[0].startswith("-")])
    own = _parts(options or ()) if name in _OF_OPTIONS else []
    return {**advice, "command": f"microc {name} {shlex.quote(model)}{_join_flags([*parts[:at], *own, *parts[at:]])}"}


def _parts(words: Sequence[str]) -> list[list[str]]:
    """Flags with their words, each a list; words before them by themselves."""
    parts = list[list[str]]()
    for word in words:
        if word.startswith("-") or not parts:
            parts.append([])
        parts[-1].append(word)
    return parts


def _join_flags(parts: Sequence[list[str]]) -> str:
    """Flags as words behind a space; where a flag, or a name behind it, is said several times, the last holds."""
    last = {_said(part): part for part in parts}
    kept = [part for part in parts if _said(part)[0] in _LISTS or last[_said(part)] is part]
    return "".join(f" {shlex.quote(word)}" for part in kept for word in part)


def _said(part: Sequence[str]) -> tuple[str, str]:
    """The flag, and the name that its words speak of; empty for one that speaks of all."""
    name = part[1].rpartition("=")[0] if len(part) > 1 else ""
    return part[0], name if part[0] in _NAMED else ""


def model_words(data: Mapping[str, Any]) -> str:
    """The model as commands take it."""
    return shlex.quote(data["source"] or data["model"])


def option_words(data: Mapping[str, Any]) -> str:
    """Board and options that a network was compiled with, as flags behind a space; options whose values reports do not hold in
    a form that flags take are left out."""
    name = data["board"]["name"]
    words = [] if name == "host" else ["--board", name]
    for option, text in data["options"].items():
        words += _flag(option, text)
    return "".join(f" {shlex.quote(word)}" for word in words)


def _flag(name: str, text: str) -> list[str]:
    """An option as a flag with its words."""
    option = OPTIONS.get(name)
    if option is None or not option.flag:
        return []
    if option.words:
        said = [word for word, value in option.words.items() if str(value) == text]
        return [option.flag, *said] if said and said[0] != option.default else []
    if not option.metavar:
        return [option.flag]
    if option.word in _WORDS:
        return [part for word in text.split(" ") if "=" in word for part in (option.flag, word)]
    if option.word in (meaning.bytes, meaning.count, meaning.names):
        return [option.flag, text]
    return []


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1f} %"
