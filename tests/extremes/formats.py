# SPDX-License-Identifier: Apache-2.0
"""Where models come from: how one is drawn and read, which runtime answers for it, what its own reference is made by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from microc.frontend.onnx import reader as onnx_reader
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph
from microc.transform.pass_context import Pass
from microc.transform.quantised import legalize, qdq
from tests.extremes import draw, elements, layers, onnx_draw, onnx_recipes
from tests.extremes.draw import Case


@dataclass(frozen=True)
class Format:
    """``count`` recipes, which seeds take in turn; ``passes`` make a graph what its references are asked for.

    ``exact``: where the runtime's arithmetic is defined the C is the same to the bit; else within :attr:`Case.slack`.
    """

    name: str
    runtime: str
    count: int
    case: Callable[[int], Case]
    read: Callable[[bytes, str], Graph]
    passes: tuple[Pass, ...]
    exact: bool


TFLITE = Format(
    "tflite",
    "TFLM",
    len(elements.RECIPES) + len(layers.RECIPES),
    lambda seed: draw.case(elements.RECIPES, layers.RECIPES, seed),
    tflite.read_tflite,
    (legalize.LEGALIZE_PASS,),
    exact=True,
)
ONNX = Format(
    "onnx",
    "ORT",
    len(onnx_recipes.RECIPES),
    lambda seed: onnx_draw.case(onnx_recipes.RECIPES, seed),
    lambda data, name: onnx_reader.read_onnx(data, name, {}),
    (qdq.PASS, legalize.LEGALIZE_PASS),
    exact=False,
)
FORMATS = {each.name: each for each in (TFLITE, ONNX)}
