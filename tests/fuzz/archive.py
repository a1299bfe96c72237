# SPDX-License-Identifier: Apache-2.0
"""Mutations of archives: the JSON and HDF5 of a Keras file, the text and arrays of a graph file (``.mcg``)."""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from typing import Any

from tests.fuzz.values import TEXTS, disturb, other_float, other_integer, other_text

_TOKEN = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+|[A-Za-z_]\w*")


def _members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


class Mutator:
    """Mutants of one file: of its JSON as a tree, of its text by words, of other members by bytes."""

    def __init__(self, data: bytes) -> None:
        self._members = _members(data)

    def mutate(self, rng: random.Random) -> bytes:
        members = dict(self._members)
        name = rng.choice(
            [n for n in members if n.endswith((".json", ".txt"))] if rng.random() < 0.8 else list(members)
        )
        if rng.random() < 0.04:
            other = rng.choice(list(members))
            if rng.random() < 0.5:
                del members[name]
            else:
                members[name] = members[other]
        elif name.endswith(".json"):
            members[name] = _json(members[name], rng)
        elif name.endswith(".txt"):
            members[name] = _text(members[name], rng)
        else:
            members[name] = _bytes(members[name], rng)
        return _archive(members)


def _json(data: bytes, rng: random.Random) -> bytes:
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        places = list(_tree_places(tree))
        if not places:
            break
        held, key = rng.choice(places)
        value = held[key]
        texts = [v for h, k in places if isinstance(v := h[k], str)]
        if isinstance(held, list) and rng.random() < 0.3:
            disturb(rng, held)
        elif isinstance(held, dict) and rng.random() < 0.15:
            del held[key]
        else:
            held[key] = _other(rng, value, texts, places)
    return json.dumps(tree).encode()


def _other(rng: random.Random, value: Any, texts: list[str], places: list[tuple[Any, Any]]) -> Any:
    kind = rng.random()
    if kind < 0.12:
        return rng.choice((None, True, 0, -1, 2.5, "", [], {}, [[]], {"a": 1}, 10**30, float("nan")))
    if kind < 0.2:
        held, key = rng.choice(places)
        return json.loads(json.dumps(held[key]))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return other_integer(rng, value)
    if isinstance(value, float):
        return other_float(rng, value)
    if isinstance(value, str):
        return other_text(rng, value, texts)
    return rng.choice((None, 1, "relu", [1, 2], {}))


def _tree_places(tree: Any) -> Any:
    for key, value in list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _tree_places(value)


def _text(data: bytes, rng: random.Random) -> bytes:
    text = data.decode()
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        tokens = list(_TOKEN.finditer(text))
        lines = text.splitlines(keepends=True)
        if rng.random() < 0.2 and lines:
            disturb(rng, lines)
            text = "".join(lines)
        elif tokens:
            token = rng.choice(tokens)
            text = text[: token.start()] + _other_word(rng, token[0], [t[0] for t in tokens]) + text[token.end() :]
    return text.encode("utf-8", "replace")


def _other_word(rng: random.Random, word: str, words: list[str]) -> str:
    if rng.random() < 0.3:
        return rng.choice(words)
    if word.lstrip("-").isdecimal():
        return str(other_integer(rng, int(word)))
    if word[0].isalpha() or word[0] == "_":
        return rng.choice((rng.choice(words), rng.choice(TEXTS), "none", word + "_"))
    return repr(other_float(rng, float(word)))


def _bytes(data: bytes, rng: random.Random) -> bytes:
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if mutant else 0):
        mutant[rng.randrange(len(mutant))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(mutant[: rng.randrange(len(mutant))] if mutant and rng.random() < 0.1 else mutant)
