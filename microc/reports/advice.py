"""Advice on how to make a network faster or smaller, ranked by the estimated gain."""

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
from microc.reports.layers import slowest_layers
from microc.reports.text_tables import milliseconds_text
from microc.target import Board, Target, target_for

# ---- Advice on arithmetic, as sentences with the command to run.
#
# Speed-ups are estimated by the cost model: a pointwise convolution is compiled in each arithmetic for the core.

WORTHWHILE = 1.2
"""Least speed-up of int8 over floats that is worth advising."""
_PIXELS, _CHANNELS = 16, 32
"""Size of the pointwise convolution that is compiled to compare arithmetics."""
_SCALE = Quant((0.0371,), (3,))
_WEIGHT_SCALE = Quant((0.0113,), (0,))


@frozen
class Speeds:
    """Estimated speeds of a core, in instructions. ``times``: instructions of a float convolution divided by those of the
    same in int8. ``scaling``: additional instructions per result that is scaled by a float instead of in fixed point.
    ``dequantizing``: instructions per element that is dequantised."""

    times: float
    scaling: float
    dequantizing: float


def arithmetic_advice(arithmetic: Arithmetic, source: str, target: Target, requantize: str) -> tuple[str, ...]:
    """List advice on the arithmetic of a network; none for the host, where networks are only tried out.

    ``source``: the model's name in commands. ``requantize``: the option that it is compiled with.
    """
    if target.cpu == "host" or not (arithmetic.float_macs or arithmetic.float_scaled):
        return ()
    speeds, sentences = estimate_speeds(target.cpu), list[str]()
    if arithmetic.float_macs and speeds.times >= WORTHWHILE:
        core = "this core has no FPU" if not target.has("fpu") else f"the core is a {target.cpu}"
        what = "int8" if arithmetic.float_macs == arithmetic.macs else "its layers of floats in int8"
        sentences.append(
            f"{core}: {what} would be about {speeds.times:.{0 if speeds.times >= 9.5 else 1}f} times faster: "
            f"microc quantize {shlex.quote(source)} --data SAMPLES -o {shlex.quote(str(Path(source).with_suffix('.mcg')))}"
        )
    saved = round(arithmetic.float_scaled * speeds.scaling)
    if saved > 0 and requantize == "float":
        sentences.append(
            f"{arithmetic.float_scaled:,} results are scaled by floats: --requantize fixed saves about {saved:,} instructions "
            "of a run, and differs for ties alone, some in a million"
        )
    return tuple(sentences)


def arithmetic_data(arithmetic: Arithmetic, sentences: tuple[str, ...]) -> dict[str, Any]:
    """Describe a network's arithmetic as plain data: multiply-accumulates in floats, their percentage, the reasons, and
    advice."""
    share = 100 * arithmetic.float_macs / max(1, arithmetic.macs)
    return {
        "float_macs": arithmetic.float_macs,
        "float_share": share,
        "float_reasons": list(arithmetic.reasons),
        "half_weights": arithmetic.half_weights,
        "double_weights": arithmetic.double_weights,
        "advice": [*sentences, *weight_notes(arithmetic)],
    }


def weight_notes(arithmetic: Arithmetic) -> tuple[str, ...]:
    """List notes on weights that take more bytes than they need."""
    return (*_two_byte_weights_note(arithmetic.double_weights), *map(_float32_weights_note, arithmetic.wide_weights))


def _two_byte_weights_note(weight_count: int) -> tuple[str, ...]:
    """Return the note on 8-bit weights with a zero point, which take two bytes each; empty if there are none."""
    if not weight_count:
        return ()
    return (
        f"{weight_count:,} weights of a byte and a zero point are nine bits and take two bytes: symmetric ones (int8, or "
        f"uint8 around 128) save {weight_count:,} bytes of flash",
    )


def _float32_weights_note(constant_name: str) -> str:
    """Return the note on a constant that stays float32 because its values exceed the range of float16."""
    return f"{constant_name} stays float32: it has numbers from 65,520 on, which bfloat16 holds and float16 does not"


@cache
def estimate_speeds(cpu: str) -> Speeds:
    """Estimate the speeds of a core by compiling small networks."""
    floats, exact, fixed = (
        compile_model(_pointwise_convolution(integers), target_for(cpu), Options(requantize=requantize)).instructions
        for integers, requantize in ((False, "float"), (True, "float"), (True, "fixed"))
    )
    count = _PIXELS * _CHANNELS
    net = GraphBuilder()
    reals = net.graph("reals", {"y": _add_dequantize_operator(net, net.input("x", (1, count), "int8"), _SCALE)})
    dequantized = compile_model(reals, target_for(cpu), Options()).instructions
    return Speeds(floats / fixed, (exact - fixed) / count, dequantized / count)


def _pointwise_convolution(integers: bool) -> Graph:
    """Build a pointwise convolution in floats, or in int8 with the quantise and dequantise operators that ONNX's quantisers
    insert."""
    net = GraphBuilder()
    weight = np.random.default_rng(0).integers(-127, 128, (_CHANNELS, 1, 1, _CHANNELS)).astype(np.int8)
    x = net.input("x", (1, 1, _PIXELS, _CHANNELS), "int8" if integers else "float32")
    if integers:
        reals = net.new_constant("weight", weight)
        x, reals = _add_dequantize_operator(net, x, _SCALE), _add_dequantize_operator(net, reals, _WEIGHT_SCALE)
    else:
        reals = net.new_constant("weight", weight.astype(np.float32))
    y = net.op("conv2d", x, reals, padding=(0, 0, 0, 0), layout="NHWC")
    if integers:
        scale, zero = _SCALE.scale, _SCALE.zero_point
        y = net.op("quantize", y, scale=scale, zero_point=zero, axis=None, out_dtype="int8", rounding=Ties.EVEN)
    return net.graph("layer", {"y": y})


def _add_dequantize_operator(net: GraphBuilder, stored: str, quant: Quant) -> str:
    """Add an operator that dequantises ``stored`` with one scale and zero point; return the name of its result."""
    return net.op("dequantize", stored, scale=quant.scale, zero_point=quant.zero_point, axis=None)


# ---- Next steps for a network on its board: functions that yield advice, ranked by the share of time that each may save.
#
# First comes what does not fit, since nothing runs before that is solved; then gains, the largest first; then advice without a
# known gain.

MIN_GAIN = 0.005
"""Share of the time below which a gain is not reported."""
SLOW_SHARE, _NEARLY_FULL, _EXPENSIVE, _NEGLIGIBLE = 0.3, 0.85, 2.0, 0.05
"""Share of the time from which a layer is reported as slow; share of a memory from which it is nearly full; factor of
cycles per multiply-accumulate, against the median layer, from which a layer is expensive; share of the time below which
that is ignored."""
_MEMORIES: Mapping[str, str] = {"flash": "flash", "ram": "RAM"}
_MANY_MACS = 1000
"""Multiply-accumulates from which a layer's cycles per multiply-accumulate are meaningful."""
SPEED_GAINS: Mapping[str, Mapping[str, float]] = {
    "size": {"cortex-m0": 0.40, "cortex-m0plus": 0.40, "rv32imc": 0.28, "cortex-m4": 0.09, "": 0.05},
    "balanced": {"cortex-m4": 0.04, "cortex-m7": 0.04, "cortex-m33": 0.04, "": 0.0},
}
"""Share of the time that ``--optimize speed`` saves, by the goal before and the core; ``""``: all other cores.

Measured: the mean over MLPerf Tiny's four int8 networks, by estimated cycles. Measure again when rules or costs change.
"""
TUNING_GAINS: Mapping[str, float] = {
    "cortex-m0": 0.002, "cortex-m0plus": 0.002, "cortex-m3": 0.03, "cortex-m4": 0.017, "cortex-m7": 0.017,
    "cortex-m33": 0.017, "cortex-m55": 0.007, "rv32imc": 0.038, "": 0.02,
}  # fmt: skip
"""Share of the time of kernels without a shipped schedule that a search saves at best, by core. Measured: docs/tuning.md,
"What searches found"."""


@frozen
class Advice:
    """A sentence, the command that carries it out (empty if none), and the estimated share of the time that it saves.

    ``gain``: None if unknown; infinity for what must be done before the network can run.
    """

    text: str
    command: str = ""
    gain: float | None = None

    @property
    def rank(self) -> float:
        """Sort key, the most urgent first."""
        return inf if self.gain is None else -self.gain

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        known = self.gain is not None and self.gain < inf
        text = f"saves about {_format_percent(self.gain or 0)} of the time: {self.text}" if known else self.text
        return {"text": text, "command": self.command, "gain": self.gain if known else None}


@frozen
class Situation:
    """A compiled network on a board, for which advice is sought. ``data``: the data of its report; ``code_in_ram``:
    estimated share of the time that running code from RAM would save."""

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
        """True for the host, where networks are only tried out."""
        return bool(self.data["board"]["name"] == "host")

    def option(self, name: str, default: str) -> str:
        """Return a compilation option as text."""
        return str(self.data["options"].get(name, default))

    def dtype(self, tensor: str) -> str:
        """Return the dtype of a tensor."""
        return next(str(each["dtype"]) for each in self.data["tensors"] if each["name"] == tensor)

    def wish(self, end: str, tensor: Mapping[str, Any], dtype: str) -> str:
        """Return the value of ``--input-dtype`` or ``--output-dtype`` that gives a tensor a dtype. It begins with the
        tensor's name if there are several inputs (or outputs), or the option is set already. ``end``: ``input`` or
        ``output``."""
        alone = len(self.data[f"{end}s"]) == 1 and not self.option(f"{end}_dtype", "")
        return shlex.quote(dtype if alone else f"{tensor['label']}={dtype}")

    def compile(self, *more: str) -> str:
        """Return the ``microc compile`` command of this network with additional options."""
        words = f"{report_option_flags(self.data)} {' '.join(more)} -o firmware"
        return f"microc compile {model_argument(self.data)}{_join_flags(_group_flags(shlex.split(words)))}"

    def command(self, name: str, *more: str) -> str:
        """Return the command ``microc NAME`` on the network's model, with its board and compilation options."""
        return " ".join((f"microc {name} {model_argument(self.data)}", *more)) + report_option_flags(self.data)


def advice_for(situation: Situation, notes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """List the advice that applies, ranked, as plain data: ``text``, ``command`` (may be empty), ``gain`` (None if
    unknown). ``notes``: sentences to add at the end."""
    advices = [item for condition in ADVICES for item in condition(situation)]
    relevant = [item for item in advices if item.gain is None or item.gain >= MIN_GAIN]
    return [item.to_data() for item in (*sorted(relevant, key=lambda item: item.rank), *map(Advice, notes))]


# ---- The advice.


def _memory_advice(situation: Situation) -> Iterator[Advice]:
    """Advise on memories: report flash or RAM that the network exceeds although the compilation has tried all options;
    otherwise advise options for memories that are nearly full."""
    totals, board = situation.data["totals"], situation.data["board"]
    over = {
        memory: totals[memory] or 0 for memory in ("flash", "ram") if (totals[memory] or 0) > (board[memory] or inf)
    }
    for memory, used in over.items():
        larger = next(larger_boards(totals["flash"] or 0, totals["ram"] or 0, board["name"]), "")
        yield Advice(
            f"{_MEMORIES[memory]} does not fit: {used:,} bytes of {board[memory]:,}; "
            + (f"{larger} has more" if larger else "no board that is known has more: choose a smaller network"),
            situation.compile(f"--board {larger}") if larger else "",
            inf,
        )
    if not over:
        yield from _nearly_full_memory_advice(situation)


def _nearly_full_memory_advice(situation: Situation) -> Iterator[Advice]:
    """Advise an option that takes less of a memory, for each memory that is nearly full."""
    totals, board = situation.data["totals"], situation.data["board"]
    target_kib = 8 * totals["arena"] // 10240
    remedies = {
        "flash": ("--optimize size", "code for size takes less", situation.option("optimize", "balanced") != "size"),
        "ram": (f"--ram {target_kib}K", "smaller workspaces and layers row by row may take less", target_kib > 0),
    }
    for memory, (option, reason, possible) in remedies.items():
        used, room = totals[memory] or 0, board[memory]
        if possible and room and used > _NEARLY_FULL * room:
            yield Advice(f"{_MEMORIES[memory]} is {100 * used / room:.0f} % full; {reason}", situation.compile(option))


def _input_dtype_advice(situation: Situation) -> Iterator[Advice]:
    """Advise ``--input-dtype`` for a float input that only a kernel of its own reads, to quantise it."""
    for tensor in situation.data["inputs"]:
        readers = [layer for layer in situation.layers if tensor["name"] in layer["inputs"]]
        if len(readers) == 1 and readers[0]["op"] == "quantize" and len(readers[0]["outputs"]) == 1:
            dtype = situation.dtype(readers[0]["outputs"][0])
            yield Advice(
                f"input {tensor['label']} comes as {tensor['dtype']} and the board quantises it: give it as {dtype}",
                situation.compile(f"--input-dtype {situation.wish('input', tensor, dtype)}"),
                readers[0]["share"],
            )


def _output_dtype_advice(situation: Situation) -> Iterator[Advice]:
    """Advise ``--output-dtype`` for an output that its kernel only dequantises at the end."""
    for tensor in situation.data["outputs"]:
        writers = [layer for layer in situation.layers if tensor["name"] in layer["outputs"]]
        used = any(tensor["name"] in layer["inputs"] for layer in situation.layers)
        if situation.is_computer or used or len(writers) != 1 or writers[0]["op"].split("+")[-1] != "dequantize":
            continue
        saved = (
            prod(tensor["shape"])
            * estimate_speeds(situation.cpu).dequantizing
            / (situation.data["totals"]["instructions"] or 1)
        )
        is_separate = writers[0]["op"] == "dequantize"
        producer_attributes = (
            dict(writers[0]["operators"][-2]["attributes"]) if len(writers[0]["operators"]) > 1 else {}
        )
        dtype = (
            situation.dtype(writers[0]["inputs"][0]) if is_separate else producer_attributes.get("out_dtype", "int8")
        )
        yield Advice(
            f"output {tensor['label']} is made {tensor['dtype']} by the board: take the {dtype} that it is made from",
            situation.compile(f"--output-dtype {situation.wish('output', tensor, dtype)}"),
            writers[0]["share"] if is_separate else min(saved, writers[0]["share"]),
        )


def _quantization_advice(situation: Situation) -> Iterator[Advice]:
    """Advise to quantise the float layers, if int8 would make them faster on this core."""
    dtype_of = {tensor["name"]: tensor["dtype"] for tensor in situation.data["tensors"]}
    floats = [k for k in situation.layers if k["macs"] and k["inputs"] and dtypes.is_float(dtype_of[k["inputs"][0]])]
    if situation.is_computer or not floats:
        return
    times = estimate_speeds(situation.cpu).times
    if times < WORTHWHILE:
        return
    core = f"the core is a {situation.cpu}" if "fpu" in CORES[situation.cpu].has else "this core has no FPU"
    what = (
        "int8" if sum(k["macs"] for k in floats) == situation.data["totals"]["macs"] else "its layers of floats in int8"
    )
    source = situation.data["source"] or situation.data["model"]
    yield Advice(
        f"{core}: {what} would be about {times:.{0 if times >= 9.5 else 1}f} times faster",
        f"microc quantize {model_argument(situation.data)} --data SAMPLES -o "
        f"{shlex.quote(str(Path(source).with_suffix('.mcg').name))}",
        sum(k["share"] for k in floats) * (1 - 1 / times),
    )


def _fixed_point_scaling_advice(situation: Situation) -> Iterator[Advice]:
    """Advise ``--requantize fixed`` for results that are scaled by floats."""
    if situation.is_computer or situation.option("requantize", "float") != "float":
        return
    sizes = {tensor["name"]: prod(tensor["shape"]) for tensor in situation.data["tensors"]}
    scaled = [layer for layer in situation.layers if "requantize_float" in layer["op"].replace(" > ", "+").split("+")]
    count = sum(sizes[name] for layer in scaled for name in layer["outputs"])
    if count:
        saved_instructions = count * max(estimate_speeds(situation.cpu).scaling, 0)
        yield Advice(
            f"{count:,} results are scaled by floats: --requantize fixed differs for ties alone, some in a million",
            situation.compile("--requantize fixed"),
            min(
                saved_instructions / (situation.data["totals"]["instructions"] or 1),
                sum(layer["share"] for layer in scaled),
            ),
        )


def _optimize_speed_advice(situation: Situation) -> Iterator[Advice]:
    """Advise ``--optimize speed`` if the network is compiled for size or a balance, and speed saves time on this core."""
    goal = situation.option("optimize", "balanced")
    gains = SPEED_GAINS.get(goal, {"": 0.0})
    gain = 0.0 if situation.is_computer else gains.get(situation.cpu, gains[""])
    if gain:
        yield Advice(
            f"the code is made for {'size' if goal == 'size' else 'a balance of speed and size'}: for speed it takes more flash",
            situation.compile("--optimize speed"),
            gain,
        )


def _code_in_ram_advice(situation: Situation) -> Iterator[Advice]:
    """Advise ``--code-in-ram`` if the core waits for code from flash."""
    if situation.code_in_ram and situation.option("code_in_ram", "False") == "False":
        yield Advice(
            "the core waits for the code of some kernels, which may run from RAM",
            situation.compile("--code-in-ram"),
            situation.code_in_ram,
        )


def _tuning_advice(situation: Situation) -> Iterator[Advice]:
    """Advise ``microc tune`` for kernels without a measured schedule."""
    untuned = [k for k in situation.layers if not k.get("shipped") and not k["rule"].startswith("external")]
    share = sum(k["share"] for k in untuned if ", tuned" not in k["rule"] and ", shipped" not in k["rule"])
    if not situation.is_computer:
        yield Advice(
            f"no schedule was measured for kernels that take {_format_percent(share)} of the time: a search on the board or its "
            "emulator may find faster ones",
            situation.command("tune", "--records tuned.jsonl"),
            share * TUNING_GAINS.get(situation.cpu, TUNING_GAINS[""]),
        )


def _accelerator_advice(situation: Situation) -> Iterator[Advice]:
    """Advise to use the board's accelerator if no layer runs on it."""
    if situation.board.target.npu and not any(layer["rule"].startswith("external") for layer in situation.layers):
        yield Advice(
            f"the board's accelerator ({situation.board.target.npu}) does nothing: it takes the layers that Vela compiles",
            situation.compile("--external ethos-u"),
        )


def _slow_layer_advice(situation: Situation) -> Iterator[Advice]:
    """Advise ``microc explain`` for the layer that takes most of the time, and for one whose multiply-accumulates are
    expensive."""
    if len(situation.layers) < 2:
        return
    (top,) = slowest_layers(situation.data, 1)
    if top["share"] > SLOW_SHARE:
        ms = (
            f" ({milliseconds_text(top['milliseconds'])}, estimated)"
            if top["milliseconds"] is not None and situation.data["measured"] is None
            else ""
        )
        yield Advice(
            f"step {top['step']}, {top['name']}, takes {_format_percent(top['share'])} of the time{ms}: "
            "what was tried for it, and what its loops cost",
            situation.command("explain", str(top["step"])),
        )
    large = [layer for layer in situation.layers if layer["macs"] >= _MANY_MACS]
    cycles_per_mac = sorted(layer["cycles"] / layer["macs"] for layer in large)
    median = cycles_per_mac[len(cycles_per_mac) // 2] if cycles_per_mac else 0
    expensive = [k for k in large if k["cycles"] > _EXPENSIVE * median * k["macs"] and k["share"] > _NEGLIGIBLE]
    if expensive and (expensive[0]["step"] != top["step"] or top["share"] <= SLOW_SHARE):
        layer = expensive[0]
        yield Advice(
            f"a product of step {layer['step']}, {layer['name']}, takes {layer['cycles'] / layer['macs']:.1f} "
            f"cycles, {median:.1f} elsewhere: why",
            situation.command("explain", str(layer["step"])),
        )


_VERBATIM_CONVERTERS = (
    meaning.parse_named_word,
    meaning.parse_shape,
    meaning.parse_axis,
    meaning.parse_feedback,
    meaning.parse_renaming,
)
"""Option converters whose values are in a report in the syntax of the command line."""
_NAMED_FLAGS = frozenset(
    option.flag
    for option in OPTIONS.values()
    if option.word in (*_VERBATIM_CONVERTERS, meaning.parse_bound, meaning.parse_pixels, meaning.parse_normalization)
)
"""Flags that may be repeated, once per name."""
_LIST_FLAGS = frozenset(
    option.flag
    for option in OPTIONS.values()
    if option.word in (meaning.parse_names, meaning.parse_path, meaning.parse_external)
)
"""Flags that may be repeated and add to a list."""
_COMPILING_COMMANDS = frozenset({"compile", "explain", "tune"})
"""Commands that take compilation options."""

ADVICES: tuple[Callable[[Situation], Iterator[Advice]], ...] = (
    _memory_advice,
    _input_dtype_advice,
    _output_dtype_advice,
    _quantization_advice,
    _fixed_point_scaling_advice,
    _optimize_speed_advice,
    _code_in_ram_advice,
    _tuning_advice,
    _accelerator_advice,
    _slow_layer_advice,
)
"""All sources of advice; of equal gains the first comes first."""


# ---- Commands as text.


def rewrite_command(
    advice: Mapping[str, Any], data: Mapping[str, Any], model: str, options: Sequence[str] | None
) -> dict[str, Any]:
    """Return ``advice`` with its command rewritten for the user: the ``model`` is named by its path, and the user's
    compilation ``options`` replace those of the report (None: keep those of the report)."""
    if not advice["command"]:
        return dict(advice)
    _, name, _, *words = shlex.split(advice["command"])
    report_flags = [] if options is None else _group_flags(shlex.split(report_option_flags(data)))
    parts = [part for part in _group_flags(words) if part not in report_flags]
    first_flag = len([part for part in parts if not part[0].startswith("-")])
    user_flags = _group_flags(options or ()) if name in _COMPILING_COMMANDS else []
    return {
        **advice,
        "command": f"microc {name} {shlex.quote(model)}{_join_flags([*parts[:first_flag], *user_flags, *parts[first_flag:]])}",
    }


def _group_flags(command_words: Sequence[str]) -> list[list[str]]:
    """Group the words of a command line: each flag with its values.

    Words before the first flag form groups of their own."""
    parts = list[list[str]]()
    for word in command_words:
        if word.startswith("-") or not parts:
            parts.append([])
        parts[-1].append(word)
    return parts


def _join_flags(flag_groups: Sequence[list[str]]) -> str:
    """Join groups of flags, each a flag with its values, to text that begins with a space.

    Of a flag that is repeated (for the same name, if its values begin with names) only the last one is kept, except
    flags that add to a list."""
    last = {_flag_key(part): part for part in flag_groups}
    kept = [part for part in flag_groups if _flag_key(part)[0] in _LIST_FLAGS or last[_flag_key(part)] is part]
    return "".join(f" {shlex.quote(word)}" for part in kept for word in part)


def _flag_key(flag_group: Sequence[str]) -> tuple[str, str]:
    """Return the key by which repeated flags are recognised: the flag, and the name that its value begins with
    (``NAME=``); the name is empty if the value applies to all names."""
    name = flag_group[1].rpartition("=")[0] if len(flag_group) > 1 else ""
    return flag_group[0], name if flag_group[0] in _NAMED_FLAGS else ""


def model_argument(data: Mapping[str, Any]) -> str:
    """Return the model's source, or its name, quoted as an argument of a command."""
    return shlex.quote(data["source"] or data["model"])


def report_option_flags(data: Mapping[str, Any]) -> str:
    """Return the board and the compilation options of a report as flags, in text that begins with a space. Options whose
    values a report does not hold in the syntax of flags are left out."""
    name = data["board"]["name"]
    words = [] if name == "host" else ["--board", name]
    for option, text in data["options"].items():
        words += _option_flag(option, text)
    return "".join(f" {shlex.quote(word)}" for word in words)


def _option_flag(name: str, text: str) -> list[str]:
    """Return a compilation option as a flag followed by its values; empty if the option has no flag, or its value is not
    in the syntax of flags."""
    option = OPTIONS.get(name)
    if option is None or not option.flag:
        return []
    if option.words:
        values = [word for word, value in option.words.items() if str(value) == text]
        return [option.flag, *values] if values and values[0] != option.default else []
    if not option.metavar:
        return [option.flag]
    if option.word in _VERBATIM_CONVERTERS:
        return [part for word in text.split(" ") if "=" in word for part in (option.flag, word)]
    if option.word in (meaning.parse_bytes, meaning.parse_count, meaning.parse_names):
        return [option.flag, text]
    return []


def _format_percent(share: float) -> str:
    """Format a share (1 is all) in percent."""
    return f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1f} %"
