# SPDX-License-Identifier: Apache-2.0
"""The corpus of real models: MICROC_CORPUS, or ``../shared/corpus`` beside the checkout.

A test that takes a model of the corpus has the marker ``corpus``: as a decorator, or by itself where a parameter is such a model.
``pytest -m corpus`` (``make corpus``) runs these tests alone; without a corpus they are skipped.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from microc.base.dtypes import Array


def _find() -> Path | None:
    named = os.environ.get("MICROC_CORPUS")
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "corpus"
    return folder if (folder / "manifest.json").is_file() else None


CORPUS = _find()

ABSENT = "the model corpus is absent: set MICROC_CORPUS or put it at ../shared/corpus"


def models(*patterns: str) -> list[Path]:
    """Model files (``.tflite``, ``.onnx``) of the corpus whose names match a glob; empty without the corpus."""
    if CORPUS is None:
        return []
    found = {
        path
        for pattern in patterns
        for folder in ("tflite", "onnx")
        for path in (CORPUS / folder).glob(pattern)
        if path.suffix in (".tflite", ".onnx")
    }
    return sorted(found)


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(path.name for path in models("*"))


def is_model(value: object) -> bool:
    """Test whether a parameter of a test is a model of the corpus: its path, its file's name, or a tuple that holds one."""
    if isinstance(value, tuple):
        return any(is_model(part) for part in value)
    if isinstance(value, Path):
        return CORPUS is not None and value.is_relative_to(CORPUS)
    return isinstance(value, str) and value in _names()


@lru_cache(maxsize=4)
def cases(path: Path) -> list[tuple[list[Array], list[Array]]]:
    """The reference cases of a model: (inputs, outputs), each in the graph's order."""
    found: list[tuple[list[Array], list[Array]]] = []
    with np.load(path.with_suffix(".npz")) as data:
        while f"case{len(found)}_out0" in data:
            k = len(found)
            inputs = [data[f"case{k}_in{i}"] for i in range(sum(n.startswith(f"case{k}_in") for n in data.files))]
            outputs = [data[f"case{k}_out{i}"] for i in range(sum(n.startswith(f"case{k}_out") for n in data.files))]
            found.append((inputs, outputs))
    return found
