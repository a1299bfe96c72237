"""A pipeline declared in a TOML file, checked: ``microc import MODEL --features FILE``.

Either a preset with its arguments::

    preset = "log_mel"
    input_dtype = "int16"
    n_mels = 40

or a pipeline's own fields and its stages in order, ``kind`` being the name of a stage in small letters::

    sample_rate = 16000
    input_dtype = "int16"

    [[stage]]
    kind = "frames"
    length = 480
    step = 320

and in both, what :func:`microc.features.join` is told: ``input``, ``bands_first``.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from errno import EFBIG
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.errors import MicrocError, OutputError, UsageError, suggestion
from microc.features.filters import Biquads, Fir, Preemphasis, Resample
from microc.features.joined import Front
from microc.features.microfrontend import MicroFrontend
from microc.features.normalise import MinMax, Normalise, Pcen
from microc.features.pipeline import Pipeline
from microc.features.presets import log_mel, mfcc, spectrogram
from microc.features.spectral import Bands, Dct, Frames, Log, Mel, Spectrogram
from microc.features.stage import Stage
from microc.features.statistics import Spectral, Statistics
from microc.reading import read_bytes

LARGEST = 1 << 20
"""Bytes of a file, at most."""
_STAGES: tuple[type[Stage], ...] = (
    *(Bands, Biquads, Dct, Fir, Frames, Log, Mel, MinMax, Normalise),
    *(Pcen, Preemphasis, Resample, Spectral, Spectrogram, Statistics),
)
KINDS: Mapping[str, type[Stage]] = MappingProxyType({each.__name__.lower(): each for each in _STAGES})
PRESETS: Mapping[str, Callable[..., Front]] = MappingProxyType(
    {"log_mel": log_mel, "mfcc": mfcc, "microfrontend": MicroFrontend, "spectrogram": spectrogram}
)
_JOINING = {"input": str, "bands_first": bool}


@dataclass(frozen=True)
class Declared:
    """What a file says: the pipeline, and which input of the network it is for, in which order of axes."""

    pipeline: Front
    input: str = ""
    bands_first: bool = False


def read(path: Path) -> Declared:
    """The pipeline of a file; OutputError where it cannot be read, UsageError, with the file and the place in it, where it makes
    no sense."""
    try:
        content = read_bytes(path, LARGEST)
    except OSError as error:
        if error.errno == EFBIG:
            what = f"the file has more than {LARGEST} bytes"
            raise UsageError(what, where=path.name, hint="a file of stages is short") from error
        hint = "give the path of a TOML file (docs/features.md)"
        raise OutputError(f"cannot read {path}: {error.strerror}", where=str(path), hint=hint) from error
    try:
        data = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"no TOML: {error}", where=path.name, hint="docs/features.md shows a file") from error
    return _declared(data, path.name)


def _declared(data: dict[str, Any], where: str) -> Declared:
    joining = {name: data.pop(name) for name in _JOINING if name in data}
    for name, value in joining.items():
        if not isinstance(value, _JOINING[name]):
            raise UsageError(f"{name} is {value!r}", where=where, hint=f"a {_JOINING[name].__name__}")
    if "preset" in data:
        made = _made(PRESETS, "preset", data, _arguments, where)
    else:
        stages = data.pop("stage", [])
        if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
            raise UsageError("stage is no list of tables", where=where, hint="write [[stage]] above each")
        places = [f"{where} stage {number}" for number in range(1, len(stages) + 1)]
        built = [_made(KINDS, "kind", s, _fields, p) for s, p in zip(stages, places, strict=True)]
        made = _called(Pipeline, {"stages": tuple(built)}, data, _fields(Pipeline) - {"stages"}, where)
    return Declared(made, **joining)


def _fields(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


def _arguments(preset: Callable[..., Front]) -> set[str]:
    """The names that a preset takes; those of :func:`mfcc`, which hands the others on, are those of :func:`log_mel`, too."""
    names = set(inspect.signature(preset).parameters)
    return names - {"others"} | (_arguments(log_mel) if "others" in names else set())


def _made(
    known: Mapping[str, Any], key: str, data: dict[str, Any], names: Callable[[Any], set[str]], where: str
) -> Any:
    """What a table names under ``key``, called with the table's other values."""
    name = data.pop(key, None)
    if not isinstance(name, str) or name not in known:
        what = f"there is no {key} {name!r}" if name is not None else f"{key} is missing"
        raise UsageError(what, where=where, hint=suggestion(str(name or ""), known, f"a {key} is one of"))
    return _called(known[name], {}, data, names(known[name]), where)


def _called(make: Any, given: dict[str, Any], data: Mapping[str, Any], known: set[str], where: str) -> Any:
    for name in data:
        if name not in known:
            raise UsageError(f"there is no key {name!r}", where=where, hint=suggestion(name, sorted(known), "keys"))
    try:
        return make(**given, **data)
    except MicrocError as error:
        error.where = error.where or where
        raise
    except TypeError as error:
        missing = str(error).partition("missing ")[2] or str(error)
        raise UsageError(f"misses {missing}", where=where, hint="keys: " + ", ".join(sorted(known))) from error
