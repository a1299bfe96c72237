"""The keywords of ``**options`` with their types, for editors, which complete them, and for type checkers, which refuse a
misspelt one. :class:`~microc.driver.options.Options` is the table; tests hold these beside it, name by name and word by word.

A mapping by the names of inputs or outputs may be one value for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from microc.driver.options.checks import Bound

if TYPE_CHECKING:
    from microc.plugin import Plugin
    from microc.schedule.rules import ScheduleRule
    from microc.transform.context import Instrument, Pass

Colour = Literal["rgb", "bgr", "gray"]
Layout = Literal["NCHW", "NHWC"]
Resizing = Literal["bilinear", "nearest"]
Late = Literal["window", "lookahead"]
Reals = float | Sequence[float]
Sizes = int | tuple[int, int] | tuple[int, int, int] | Bound


class ReadingOptions(TypedDict, total=False):
    """How a model is read: what :func:`microc.load` and :func:`microc.quantize` take."""

    name: str
    input_shapes: Mapping[str, tuple[int, ...]] | None
    example_inputs: Any
    inputs: str | Collection[str]
    outputs: str | Collection[str]
    state: Mapping[str, str]
    input_dtype: str | Mapping[str, str]
    input_layout: Layout | Mapping[str, Layout]
    input_normalize: tuple[Reals, Reals] | Mapping[str, tuple[Reals, Reals]]
    input_colour: Colour | Mapping[str, Colour]
    input_frame: tuple[int, int] | Mapping[str, tuple[int, int]]
    input_crop: tuple[int, int] | Mapping[str, tuple[int, int]]
    input_resize: Resizing | Mapping[str, Resizing]
    output_dtype: str | Mapping[str, str]
    output_layout: Layout | Mapping[str, Layout]
    rename: Mapping[str, str]
    plugins: str | Path | Plugin | Sequence[str | Path | Plugin]


class CompileOptions(ReadingOptions, total=False):
    """The options of a compilation: what :func:`microc.compile`, :func:`microc.report`, :func:`microc.explain`,
    :func:`microc.verify` and :func:`microc.tune` take as keywords. A function that hands them on says so:
    ``def mine(**options: Unpack[microc.CompileOptions])``. What each means: docs/options.md."""

    bounds: Mapping[str, Sizes]
    class_names: Sequence[str]
    self_test: str | Path | None
    opt_level: Literal[0, 1, 2, 3, 4]
    disabled: str | Collection[str]
    required: str | Collection[str]
    io_in_arena: bool
    threads: int
    protocol: Literal["rpc", "mlperf", "tuning"]
    relocatable: bool
    requantize: Literal["float", "fixed"]
    hybrid: Literal["float", "dynamic"]
    rounding: Literal["tflm", "litert", "single"]
    math: Literal["exact", "fast", "half"]
    weight_dtype: Literal["model", "float16", "bfloat16"]
    optimize: Literal["speed", "size", "balanced"]
    flash: int | str
    ram: int | str
    code_in_ram: bool
    tuned: str | Path | None
    plan: str | Path | None
    shipped: bool
    external: str | Mapping[str, str | Path]
    external_choice: Literal["cost", "all"]
    stream: int | Mapping[str, int]
    hop: int
    stream_allow: Late | Collection[Late]
    dump: str | Path | None
    cache: bool
    passes: Pass | Sequence[Pass]
    instruments: Sequence[Instrument]
    schedules: ScheduleRule | Sequence[ScheduleRule]
