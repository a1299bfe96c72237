# SPDX-License-Identifier: Apache-2.0
"""Advice on how to make a network faster or smaller, ranked by the estimated gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.base.operating_system import quote_argument, split_command
from microc.compiler import option_values as meaning
from microc.compiler.fit.budget import MARGIN, list_larger_boards
from microc.compiler.options import OPTIONS, Options
from microc.compiler.pipeline import compile_model
from microc.document.blocks import format_milliseconds
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.isa import CORES
from microc.module import Arithmetic
from microc.ops.attributes import Ties
from microc.reports.report_document import slowest_layers
from microc.target import Board, Target, target_for

# ---- Advice on arithmetic (floats or integers), as sentences that contain the command to run.
#
# Speed-ups are estimated by the cost model: a pointwise convolution is compiled for the core in floats and in int8.

MIN_INT8_SPEEDUP = 1.2
"""Least speed-up of int8 over floats for which quantising is advised."""
_PROBE_PIXELS, _PROBE_CHANNELS = 16, 32
"""Number of pixels and of channels of the pointwise convolution that is compiled to compare floats and int8."""
_PROBE_ELEMENTS = _PROBE_PIXELS * _PROBE_CHANNELS
_PROBE_SCALE = Quant((0.0371,), (3,))
_PROBE_WEIGHT_SCALE = Quant((0.0113,), (0,))


@frozen
class FloatCosts:
    """Estimated costs of floats on the core ``cpu``, compared with integers.

    Each cost is estimated when it is read, from the instructions of one or two small networks that are compiled for it."""

    cpu: str

    @property
    def int8_speedup(self) -> float:
        """Instructions of a convolution in floats, divided by the instructions of the same convolution in int8."""
        return _count_convolution_instructions(self.cpu, False, "float") / self._fixed_point_instructions

    @property
    def instructions_per_scaled_result(self) -> float:
        """Additional instructions for a result that is scaled by a float, not in fixed point."""
        exact = _count_convolution_instructions(self.cpu, True, "float")
        return (exact - self._fixed_point_instructions) / _PROBE_ELEMENTS

    @property
    def instructions_per_dequantized_element(self) -> float:
        """Instructions for each element that is dequantised."""
        return _count_dequantize_instructions(self.cpu) / _PROBE_ELEMENTS

    @property
    def _fixed_point_instructions(self) -> float:
        """Instructions of a convolution in int8 whose results are scaled in fixed point."""
        return _count_convolution_instructions(self.cpu, True, "fixed")


def advise_on_arithmetic(arithmetic: Arithmetic, model: str, target: Target, requantize: str) -> tuple[str, ...]:
    """Return advice on the arithmetic of a network, as sentences; none for the host, where networks are only tried out.

    ``model``: path of the model file to name in commands. ``requantize``: value of the option ``requantize`` under which the
    network is compiled.
    """
    if target.cpu == "host" or not (arithmetic.float_macs or arithmetic.float_scaled):
        return ()
    float_costs, sentences = FloatCosts(target.cpu), list[str]()
    speedup = float_costs.int8_speedup if arithmetic.float_macs else 0.0
    if speedup >= MIN_INT8_SPEEDUP:
        core = "this core has no FPU" if not target.has("fpu") else f"the core is a {target.cpu}"
        what = "int8" if arithmetic.float_macs == arithmetic.macs else "its float layers in int8"
        sentences.append(
            f"{core}: {what} would be about {speedup:.{0 if speedup >= 9.5 else 1}f} times faster: "
            f"microc quantize {quote_argument(model)} --data SAMPLES -o {quote_argument(str(Path(model).with_suffix('.mcg')))}"
        )
    scaled = arithmetic.float_scaled if requantize == "float" else 0
    saved = round(scaled * float_costs.instructions_per_scaled_result) if scaled else 0
    if saved > 0:
        sentences.append(
            f"{arithmetic.float_scaled:,} results are scaled by floats: --requantize fixed saves about {saved:,} instructions "
            "of a run; it rounds only ties differently, a few results in a million"
        )
    return tuple(sentences)


def describe_arithmetic(arithmetic: Arithmetic, advice_sentences: tuple[str, ...]) -> dict[str, Any]:
    """Describe a network's arithmetic as plain data, ready for JSON.

    The data are the number of multiply-accumulates in floats, their percentage, the reasons why they are in floats, and
    ``advice_sentences``."""
    share = 100 * arithmetic.float_macs / max(1, arithmetic.macs)
    return {
        "float_macs": arithmetic.float_macs,
        "float_share": share,
        "float_reasons": list(arithmetic.reasons),
        "half_weights": arithmetic.half_weights,
        "double_weights": arithmetic.double_weights,
        "advice": [*advice_sentences, *weight_storage_notes(arithmetic)],
    }


def weight_storage_notes(arithmetic: Arithmetic) -> tuple[str, ...]:
    """Return sentences on weights that are stored in more bytes than they need."""
    return (*_two_byte_weights_note(arithmetic.double_weights), *map(_float32_weights_note, arithmetic.wide_weights))


def _two_byte_weights_note(weight_count: int) -> tuple[str, ...]:
    """Return the note on 8-bit weights with a zero point, each of which is stored in two bytes; empty if there are none.

    A weight minus its zero point has nine bits."""
    if not weight_count:
        return ()
    return (
        f"{weight_count:,} 8-bit weights with a zero point take two bytes each, since their difference has nine bits: "
        f"symmetric weights (int8 with zero point 0, or uint8 with zero point 128) save {weight_count:,} bytes of flash",
    )


def _float32_weights_note(constant_name: str) -> str:
    """Return the note on a constant that stays float32 because its values exceed the range of float16."""
    return f"{constant_name} stays float32: it contains numbers of at least 65,520, which bfloat16 can store and float16 cannot"


@cache
def _count_convolution_instructions(cpu: str, is_int8: bool, requantize: str) -> float:
    """Count the instructions of a pointwise convolution on a core. ``requantize``: value of the option."""
    graph = _build_pointwise_convolution_graph(is_int8)
    return compile_model(graph, target_for(cpu), Options(requantize=requantize)).instructions


@cache
def _count_dequantize_instructions(cpu: str) -> float:
    """Count the instructions that dequantise as many elements as the convolution has, on a core."""
    net = GraphBuilder()
    x = net.input("x", (1, _PROBE_ELEMENTS), "int8")
    graph = net.graph("reals", {"y": _add_dequantize_operator(net, x, _PROBE_SCALE)})
    return compile_model(graph, target_for(cpu), Options()).instructions


def _build_pointwise_convolution_graph(is_int8: bool) -> Graph:
    """Build a graph of a pointwise convolution: in floats or, if ``is_int8`` is true, in int8.

    The int8 graph has the quantise and dequantise operators that ONNX's quantisers insert."""
    net = GraphBuilder()
    weight = np.random.default_rng(0).integers(-127, 128, (_PROBE_CHANNELS, 1, 1, _PROBE_CHANNELS)).astype(np.int8)
    x = net.input("x", (1, 1, _PROBE_PIXELS, _PROBE_CHANNELS), "int8" if is_int8 else "float32")
    if is_int8:
        stored_weight = net.new_constant("weight", weight)
        x, float_weight = (
            _add_dequantize_operator(net, x, _PROBE_SCALE),
            _add_dequantize_operator(net, stored_weight, _PROBE_WEIGHT_SCALE),
        )
    else:
        float_weight = net.new_constant("weight", weight.astype(np.float32))
    y = net.op("conv2d", x, float_weight, padding=(0, 0, 0, 0), layout="NHWC")
    if is_int8:
        scale, zero = _PROBE_SCALE.scale, _PROBE_SCALE.zero_point
        y = net.op("quantize", y, scale=scale, zero_point=zero, axis=None, out_dtype="int8", rounding=Ties.EVEN)
    return net.graph("layer", {"y": y})


def _add_dequantize_operator(net: GraphBuilder, value: str, quant: Quant) -> str:
    """Add an operator that dequantises an integer value, and return the name of the operator's result."""
    return net.op("dequantize", value, scale=quant.scale, zero_point=quant.zero_point, axis=None)


# ---- Advice on next steps for a network on its board, ranked by the share of time that each step may save.
#
# First comes advice on memory that the network exceeds, because the network cannot run before that is solved; then advice with a
# known gain, the largest gain first; then advice without a known gain.

MIN_GAIN = 0.005
"""Least gain that is reported, as a share of the network's time."""
SLOW_SHARE, _NEARLY_FULL_SHARE, _EXPENSIVE_RATIO, _NEGLIGIBLE_SHARE = 0.3, 0.85, 2.0, 0.05
"""Thresholds of advice.

``SLOW_SHARE``: a layer is slow if it takes more than this share of the network's time. ``_NEARLY_FULL_SHARE``: a memory is
nearly full if more than this share of its bytes is used. ``_EXPENSIVE_RATIO``: a layer is expensive if its cycles per
multiply-accumulate exceed those of the median layer by more than this factor. ``_NEGLIGIBLE_SHARE``: no advice is given on an
expensive layer that takes at most this share of the network's time."""
_RANGE_BASIS = ", the range over five int8 networks"
_MEMORY_NAMES: Mapping[str, str] = {"flash": "flash", "ram": "RAM"}
_MIN_COMPARED_MACS = 1000
"""Least number of multiply-accumulates for which a layer's cycles per multiply-accumulate are compared with other layers."""
BALANCED_GAINS: Mapping[str, tuple[float, float]] = {
    "cortex-m0": (0.38, 0.53), "cortex-m0plus": (0.38, 0.53), "cortex-m4": (0.04, 0.54), "cortex-m7": (0.09, 0.52),
    "cortex-m33": (0.04, 0.54), "cortex-m55": (0.0, 0.38), "rv32imc": (0.15, 0.35),
}  # fmt: skip
"""Share of the time that ``--optimize balanced`` saves where the goal is ``size``, by core: the least and the most.

Of estimated cycles, over the int8 networks of MLPerf Tiny (ad, ic, kws, vww) and ``examples/digits``, on mps2-an386, mps2-an500,
mps2-an505, mps3-an547, esp32-c3 and raspberry-pi-pico, whose range holds for Cortex-M0 (0.44 and 0.53 there of the two that fit
a board). ``--optimize speed`` saves as much to within 0.05, but for ic (0.07). Compute them again when schedule rules or the
cost model change."""
SPEED_GAINS: Mapping[str, tuple[float, float]] = {
    "cortex-m4": (-0.02, 0.10), "cortex-m7": (-0.01, 0.13), "cortex-m33": (-0.02, 0.10),
}  # fmt: skip
"""The same of ``--optimize speed`` where the goal is ``balanced``; below 0.01 on the other cores above.

The goal counts instructions and the time is in cycles, so that it may rise: on nucleo-l476rg, which waits for its flash, by up
to 18 %."""
TUNING_GAINS: Mapping[str, float] = {
    "cortex-m0": 0.002, "cortex-m0plus": 0.002, "cortex-m3": 0.03, "cortex-m4": 0.017, "cortex-m7": 0.017,
    "cortex-m33": 0.017, "cortex-m55": 0.007, "rv32imc": 0.038, "": 0.02,
}  # fmt: skip
"""Share of time that a search for schedules saves at most, by core; ``""``: all other cores.

It applies to the time of kernels that have no schedule shipped with microc. Measured as docs/tuning.md, "What searches
found", describes."""


@frozen
class Advice:
    """A piece of advice: a sentence, the command that carries it out, and the estimated gain.

    ``command``: empty if there is none. ``gain``: the share of the network's time that the advice saves, None if unknown;
    infinity if the network cannot run before the advice is followed. ``basis``: words for a gain that is not an estimate
    for this network. ``most``: the largest gain, if ``gain`` is the least of a range.
    """

    text: str
    command: str = ""
    gain: float | None = None
    basis: str = ""
    most: float = 0.0

    @property
    def rank(self) -> float:
        """Sort key that places the largest gain first, and advice of unknown gain last."""
        return inf if self.gain is None else -self.gain

    def to_data(self) -> dict[str, Any]:
        """Convert the advice to plain data, ready for JSON."""
        known = self.gain is not None and self.gain < inf
        gain = self.gain or 0
        share = _format_percent_range(gain, self.most) if self.most else f"about {_format_percent(gain)}"
        text = f"saves {share} of the time{self.basis}: {self.text}" if known else self.text
        return {"text": text, "command": self.command, "gain": self.gain if known else None}


@frozen
class AdvisedNetwork:
    """A compiled network on a board, about which advice is given.

    ``data``: the data of the network's report (:class:`microc.reports.report.Report`); ``code_in_ram``: estimated share
    of the time that running code from RAM would save."""

    data: Mapping[str, Any]
    board: Board
    code_in_ram: float = 0.0

    @property
    def layers(self) -> Sequence[Mapping[str, Any]]:
        """Layers of the network as the report describes them, in the order in which they run."""
        found: Sequence[Mapping[str, Any]] = self.data["layers"]
        return found

    @property
    def cpu(self) -> str:
        """Core of the board, such as ``cortex-m4``."""
        return str(self.data["board"]["cpu"])

    @property
    def is_computer(self) -> bool:
        """True if the board is the host (this computer), where networks are only tried out."""
        return bool(self.data["board"]["name"] == "host")

    def option(self, name: str, default: str) -> str:
        """Return the value of a compilation option as text; ``default`` if the report does not contain the option."""
        return str(self.data["options"].get(name, default))

    def dtype(self, tensor: str) -> str:
        """Return the dtype of the tensor with the name ``tensor``."""
        return next(str(each["dtype"]) for each in self.data["tensors"] if each["name"] == tensor)

    def dtype_option_value(self, direction: str, tensor: Mapping[str, Any], dtype: str) -> str:
        """Return the value of ``--input-dtype`` or ``--output-dtype`` that sets the dtype of an input or output.

        The value begins with the tensor's name if the network has several inputs (or outputs), or if the option is already
        set. ``direction``: ``input`` or ``output``."""
        alone = len(self.data[f"{direction}s"]) == 1 and not self.option(f"{direction}_dtype", "")
        return quote_argument(dtype if alone else f"{tensor['label']}={dtype}")

    def format_compile_command(self, *extra_words: str) -> str:
        """Return the ``microc compile`` command of this network with the additional options ``extra_words``, as text."""
        words = f"{format_option_flags_of_report(self.data)} {' '.join(extra_words)} -o firmware"
        return f"microc compile {quoted_model_path(self.data)}{_join_flags(_group_flags(split_command(words)))}"

    def format_command(self, name: str, *extra_words: str) -> str:
        """Return the command ``microc NAME`` for the network's model, with its board and compilation options, as text.

        ``extra_words``: words that follow the model."""
        return " ".join(
            (f"microc {name} {quoted_model_path(self.data)}", *extra_words)
        ) + format_option_flags_of_report(self.data)


def list_advice(network: AdvisedNetwork, notes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """List the advice that applies to a network, ranked, as plain data.

    Each item has ``text``, ``command`` (may be empty) and ``gain`` (None if unknown). ``notes``: sentences to add at the
    end."""
    advices = [item for condition in ADVICES for item in condition(network)]
    relevant = [item for item in advices if item.gain is None or item.gain >= MIN_GAIN]
    return [item.to_data() for item in (*sorted(relevant, key=lambda item: item.rank), *map(Advice, notes))]


# ---- Functions that yield advice for a network, each on one subject.


def _memory_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield advice on flash and RAM.

    If the network exceeds the flash or the RAM, the advice is a larger board, because the compilation has already tried all
    options that save memory. Otherwise, for each memory that is nearly full, the advice is an option that saves bytes of it."""
    totals, board = network.data["totals"], network.data["board"]
    over = {
        memory: totals[memory] or 0 for memory in ("flash", "ram") if (totals[memory] or 0) > (board[memory] or inf)
    }
    for memory, used in over.items():
        larger = next(list_larger_boards(totals["flash"] or 0, totals["ram"] or 0, board["name"]), "")
        yield Advice(
            f"{_MEMORY_NAMES[memory]} does not fit: {used:,} bytes of {board[memory]:,}; "
            + (f"{larger} has more" if larger else "no known board has more: choose a smaller network"),
            network.format_compile_command(f"--board {larger}") if larger else "",
            inf,
        )
    if not over:
        yield from _nearly_full_memory_advice(network)


def _nearly_full_memory_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield, for each memory that is nearly full, the advice to use an option that saves bytes of it, and a larger board.

    The effect of a limit is known only after a search: a limit that cannot be met is refused with the least one. The limit
    of flash takes a tenth off the code of kernels; ``--optimize size`` makes all of them smaller, at more time."""
    totals, board = network.data["totals"], network.data["board"]
    limit = 4 * totals["arena"] // 5
    code = sum(layer["code"] for layer in network.layers)
    saved_code = code // 10
    remedies = (
        (
            "flash",
            f"--flash {totals['weights'] + code - saved_code}",
            f"this limit of weights and kernels takes {saved_code:,} bytes off it, where that costs the least time; if no choice "
            "meets it, the error says the least limit",
            saved_code > 0 and network.option("flash", "0") == "0",
        ),
        (
            "flash",
            "--optimize size",
            f"code optimised for size takes fewer bytes, and {_slowdown_of_size(network.cpu)}",
            network.option("optimize", "balanced") != "size",
        ),
        (
            "ram",
            f"--ram {limit}",
            f"this limit takes {totals['arena'] - limit:,} bytes off it, for some time; if no schedule meets it, the error says "
            "the least limit",
            limit > 0,
        ),
    )
    full = {
        memory for memory in ("flash", "ram") if (totals[memory] or 0) > _NEARLY_FULL_SHARE * (board[memory] or inf)
    }
    for memory, option, effect, possible in remedies:
        if memory in full and possible:
            yield Advice(
                f"{_MEMORY_NAMES[memory]} is {100 * totals[memory] / board[memory]:.0f} % full; {effect}",
                network.format_compile_command(option),
            )
    larger = next(list_larger_boards(totals["flash"] or 0, totals["ram"] or 0, board["name"]), "") if full else ""
    if larger:
        yield Advice(
            f"{larger} has at least {MARGIN} times the flash and the RAM that the network takes here",
            network.format_compile_command(f"--board {larger}"),
        )


def _slowdown_of_size(cpu: str) -> str:
    """Describe by how much of the present time ``--optimize size`` increases it on a core, from :data:`BALANCED_GAINS`."""
    if cpu not in BALANCED_GAINS:
        return "more time"
    least, most = (1 / (1 - gain) - 1 for gain in BALANCED_GAINS[cpu])
    return f"{_format_percent_range(least, most)} more time{_RANGE_BASIS}"


def _input_dtype_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to use ``--input-dtype`` for a float input whose only reader is a kernel that quantises it."""
    for tensor in network.data["inputs"]:
        readers = [layer for layer in network.layers if tensor["name"] in layer["inputs"]]
        if len(readers) == 1 and readers[0]["op"] == "quantize" and len(readers[0]["outputs"]) == 1:
            dtype = network.dtype(readers[0]["outputs"][0])
            yield Advice(
                f"the board quantises input {tensor['label']} from {tensor['dtype']} to {dtype}: pass it as {dtype}",
                network.format_compile_command(f"--input-dtype {network.dtype_option_value('input', tensor, dtype)}"),
                readers[0]["share"],
            )


def _output_dtype_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to use ``--output-dtype`` for an output whose kernel dequantises it as the last operator."""
    for tensor in network.data["outputs"]:
        writers = [layer for layer in network.layers if tensor["name"] in layer["outputs"]]
        used = any(tensor["name"] in layer["inputs"] for layer in network.layers)
        if network.is_computer or used or len(writers) != 1 or writers[0]["op"].split("+")[-1] != "dequantize":
            continue
        saved = (
            prod(tensor["shape"])
            * FloatCosts(network.cpu).instructions_per_dequantized_element
            / (network.data["totals"]["instructions"] or 1)
        )
        is_separate = writers[0]["op"] == "dequantize"
        producer_attributes = (
            dict(writers[0]["operators"][-2]["attributes"]) if len(writers[0]["operators"]) > 1 else {}
        )
        dtype = network.dtype(writers[0]["inputs"][0]) if is_separate else producer_attributes.get("out_dtype", "int8")
        yield Advice(
            f"the board dequantises output {tensor['label']} from {dtype} to {tensor['dtype']}: read it as {dtype}",
            network.format_compile_command(f"--output-dtype {network.dtype_option_value('output', tensor, dtype)}"),
            writers[0]["share"] if is_separate else min(saved, writers[0]["share"]),
        )


def _quantization_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to quantise the float layers, if int8 is estimated to be faster on this core."""
    dtype_of = {tensor["name"]: tensor["dtype"] for tensor in network.data["tensors"]}
    float_layers = [
        layer
        for layer in network.layers
        if layer["macs"] and layer["inputs"] and dtypes.is_float(dtype_of[layer["inputs"][0]])
    ]
    if network.is_computer or not float_layers:
        return
    times = FloatCosts(network.cpu).int8_speedup
    if times < MIN_INT8_SPEEDUP:
        return
    core = f"the core is a {network.cpu}" if "fpu" in CORES[network.cpu].has else "this core has no FPU"
    is_all_float = sum(layer["macs"] for layer in float_layers) == network.data["totals"]["macs"]
    what = "int8" if is_all_float else "its float layers in int8"
    source = network.data["source"] or network.data["model"]
    yield Advice(
        f"{core}: {what} would be about {times:.{0 if times >= 9.5 else 1}f} times faster",
        f"microc quantize {quoted_model_path(network.data)} --data SAMPLES -o "
        f"{quote_argument(str(Path(source).with_suffix('.mcg').name))}",
        sum(layer["share"] for layer in float_layers) * (1 - 1 / times),
    )


def _fixed_point_scaling_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to use ``--requantize fixed``, if integer results are scaled by floats."""
    if network.is_computer or network.option("requantize", "float") != "float":
        return
    sizes = {tensor["name"]: prod(tensor["shape"]) for tensor in network.data["tensors"]}
    scaled = [layer for layer in network.layers if "requantize_float" in layer["op"].replace(" > ", "+").split("+")]
    count = sum(sizes[name] for layer in scaled for name in layer["outputs"])
    if count:
        saved_instructions = count * max(FloatCosts(network.cpu).instructions_per_scaled_result, 0)
        yield Advice(
            f"{count:,} results are scaled by floats: --requantize fixed rounds only ties differently, a few in a million",
            network.format_compile_command("--requantize fixed"),
            min(
                saved_instructions / (network.data["totals"]["instructions"] or 1),
                sum(layer["share"] for layer in scaled),
            ),
        )


def _goal_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to optimise for less time: for a balance instead of size, or for speed instead of a balance.

    The gain of a balance is at least what it is on other networks. That of speed may be none. No advice is given to a core
    that waits for flash, where larger code may take more time."""
    goal = network.option("optimize", "balanced")
    if network.is_computer:
        return
    if goal == "size":
        least, most = BALANCED_GAINS.get(network.cpu, (0.0, 0.0))
        effect = f", and up to {_format_percent(most)} less time{_RANGE_BASIS}" if most and not least else ""
        yield Advice(
            f"the code is optimised for size: code optimised for a balance of speed and size takes more flash{effect}",
            network.format_compile_command("--optimize balanced"),
            least or None,
            _RANGE_BASIS,
            most,
        )
    elif goal == "balanced" and network.cpu in SPEED_GAINS and not network.board.target.flash_wait:
        slower, faster = (abs(gain) for gain in SPEED_GAINS[network.cpu])
        yield Advice(
            "the code is optimised for a balance of speed and size: code optimised for speed executes the fewest "
            f"instructions, takes more flash, and between {_format_percent(faster)} less and {_format_percent(slower)} more "
            f"time{_RANGE_BASIS}; compare the estimates",
            network.format_compile_command("--optimize speed"),
        )


def _code_in_ram_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to use ``--code-in-ram``, if the core waits for code from flash."""
    if network.code_in_ram and network.option("code_in_ram", "False") == "False":
        yield Advice(
            "the core waits while it fetches the code of some kernels from flash: they can run from RAM",
            network.format_compile_command("--code-in-ram"),
            network.code_in_ram,
        )


def _tuning_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to run ``microc tune``, for kernels whose schedule was not chosen by measuring."""
    untuned = [k for k in network.layers if not k.get("shipped") and not k["rule"].startswith("external")]
    share = sum(k["share"] for k in untuned if ", tuned" not in k["rule"] and ", shipped" not in k["rule"])
    if not network.is_computer:
        yield Advice(
            f"kernels that take {_format_percent(share)} of the time have schedules that were not chosen by measuring: "
            "a search on the board or its emulator may find faster ones",
            network.format_command("tune", "--records tuned.jsonl"),
            share * TUNING_GAINS.get(network.cpu, TUNING_GAINS[""]),
            " at most",
        )


def _accelerator_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to use the board's accelerator, if it has one and no layer runs on it."""
    if network.board.target.npu and not any(layer["rule"].startswith("external") for layer in network.layers):
        yield Advice(
            f"the board's accelerator ({network.board.target.npu}) is not used: it can run the layers that Vela compiles",
            network.format_compile_command("--external ethos-u"),
        )


def _slow_layer_advice(network: AdvisedNetwork) -> Iterator[Advice]:
    """Yield the advice to run ``microc explain`` for slow layers.

    These are the layer that takes most of the time, and the first layer whose cycles per multiply-accumulate are far above
    the median."""
    if len(network.layers) < 2:
        return
    (top,) = slowest_layers(network.data, 1)
    if top["share"] > SLOW_SHARE:
        ms = (
            f" ({format_milliseconds(top['milliseconds'])}, estimated)"
            if top["milliseconds"] is not None and network.data["measured"] is None
            else ""
        )
        yield Advice(
            f"step {top['step']}, {top['name']}, takes {_format_percent(top['share'])} of the time{ms}: "
            "list the schedules that were tried for it, and the cycles of its loops",
            network.format_command("explain", str(top["step"])),
        )
    large = [layer for layer in network.layers if layer["macs"] >= _MIN_COMPARED_MACS]
    cycles_per_mac = sorted(layer["cycles"] / layer["macs"] for layer in large)
    median = cycles_per_mac[len(cycles_per_mac) // 2] if cycles_per_mac else 0
    expensive = [
        k for k in large if k["cycles"] > _EXPENSIVE_RATIO * median * k["macs"] and k["share"] > _NEGLIGIBLE_SHARE
    ]
    if expensive and (expensive[0]["step"] != top["step"] or top["share"] <= SLOW_SHARE):
        layer = expensive[0]
        yield Advice(
            f"step {layer['step']}, {layer['name']}, takes {layer['cycles'] / layer['macs']:.1f} cycles per "
            f"multiply-accumulate, the median layer {median:.1f}: find the reason",
            network.format_command("explain", str(layer["step"])),
        )


_VERBATIM_CONVERTERS = (
    meaning.parse_named_word,
    meaning.parse_shape,
    meaning.parse_axis,
    meaning.parse_state_feedback,
    meaning.parse_renaming,
)
"""Converters of option values (:attr:`microc.compiler.options.Option.word`) whose input text a report stores unchanged."""
_NAMED_FLAGS = frozenset(
    option.flag
    for option in OPTIONS.values()
    if option.word in (*_VERBATIM_CONVERTERS, meaning.parse_bound, meaning.parse_pixels, meaning.parse_normalization)
)
"""Flags that may be repeated, once for each name with which their value begins (``NAME=``)."""
_LIST_FLAGS = frozenset(
    option.flag
    for option in OPTIONS.values()
    if option.word in (meaning.parse_names, meaning.parse_path, meaning.parse_backend_and_library)
)
"""Flags that may be repeated, and whose values are collected in a list."""
_COMPILING_COMMANDS = frozenset({"compile", "explain", "tune"})
"""Commands in advice that accept compilation options."""

ADVICES: tuple[Callable[[AdvisedNetwork], Iterator[Advice]], ...] = (
    _memory_advice,
    _input_dtype_advice,
    _output_dtype_advice,
    _quantization_advice,
    _fixed_point_scaling_advice,
    _goal_advice,
    _code_in_ram_advice,
    _tuning_advice,
    _accelerator_advice,
    _slow_layer_advice,
)
"""All functions that yield advice. Advice of equal gain is listed in this order."""


# ---- Commands as text.


def rewrite_command_of_advice(
    advice: Mapping[str, Any], data: Mapping[str, Any], model: str, options: Sequence[str] | None, output: str = ""
) -> dict[str, Any]:
    """Return ``advice`` with a command that the user can run in the present folder.

    The command names the model by the path ``model``. The user's compilation options ``options`` replace the options that
    the report contains; None: the report's options are kept. ``output``: path that ``microc compile`` writes, empty for
    the folder ``firmware``."""
    if not advice["command"]:
        return dict(advice)
    _, name, _, *words = split_command(advice["command"])
    report_flags = [] if options is None else _group_flags(split_command(format_option_flags_of_report(data)))
    parts = [part for part in _group_flags(words) if part not in report_flags]
    first_flag = len([part for part in parts if not part[0].startswith("-")])
    user_flags = _group_flags(options or ()) if name in _COMPILING_COMMANDS else []
    written = [["-o", output]] if output and name == "compile" else []
    flags = _join_flags([*parts[:first_flag], *user_flags, *parts[first_flag:], *written])
    return {**advice, "command": f"microc {name} {quote_argument(model)}{flags}"}


def _group_flags(command_words: Sequence[str]) -> list[list[str]]:
    """Group the words of a command line: each group is a flag followed by its values.

    Words before the first flag form one group."""
    parts = list[list[str]]()
    for word in command_words:
        if word.startswith("-") or not parts:
            parts.append([])
        parts[-1].append(word)
    return parts


def _join_flags(flag_groups: Sequence[list[str]]) -> str:
    """Join groups of words, each a flag with its values, to text that begins with a space.

    If a flag occurs several times, only the last occurrence is kept; for a flag whose values begin with names, the last
    occurrence for each name. Flags whose values are collected in a list are all kept."""
    last = {_flag_group_key(part): part for part in flag_groups}
    kept = [
        part for part in flag_groups if _flag_group_key(part)[0] in _LIST_FLAGS or last[_flag_group_key(part)] is part
    ]
    return "".join(f" {quote_argument(word)}" for part in kept for word in part)


def _flag_group_key(flag_group: Sequence[str]) -> tuple[str, str]:
    """Return the key by which repeated flags are recognised, a pair (flag, name).

    The name is the one with which the flag's value begins (``NAME=``); it is empty if the value applies to all names."""
    name = flag_group[1].rpartition("=")[0] if len(flag_group) > 1 else ""
    return flag_group[0], name if flag_group[0] in _NAMED_FLAGS else ""


def quoted_model_path(data: Mapping[str, Any]) -> str:
    """Return the path of a report's model, or its name if the path is unknown, quoted as an argument of a command."""
    return quote_argument(data["source"] or data["model"])


def format_option_flags_of_report(data: Mapping[str, Any]) -> str:
    """Return the board and the compilation options of a report as flags, in text that begins with a space.

    Options whose values the report does not store in command-line syntax are left out."""
    name = data["board"]["name"]
    words = [] if name == "host" else ["--board", name]
    for option, text in data["options"].items():
        words += _words_of_option(option, text)
    return "".join(f" {quote_argument(word)}" for word in words)


def _words_of_option(name: str, text: str) -> list[str]:
    """Return a compilation option of a report as a flag followed by its values.

    ``text``: the value in the report. The list is empty if the option has no flag, or if its value is not in command-line
    syntax."""
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
    if option.word in (meaning.parse_byte_count, meaning.parse_count, meaning.parse_names):
        return [option.flag, text]
    return []


def _format_percent(share: float) -> str:
    """Format a share, 0 to 1, in percent."""
    return f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1f} %"


def _format_percent_range(least: float, most: float) -> str:
    """Format two shares as a range of percent, such as ``4 to 54 %``."""
    return f"{100 * least:.0f} to {100 * most:.0f} %"
