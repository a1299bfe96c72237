# SPDX-License-Identifier: Apache-2.0
"""Trains a small language model on text.txt with numpy alone, and writes it as model.onnx: some minutes on one core.

    python examples/language_model/train.py [--steps 1500]

A decoder as language models are today: norms by the root of the mean square, rotations for positions, four heads of queries
that share two of keys and values, gated layers between. The last steps train what rounding to 4 bits (the head: 8) leaves of
the weights, so that the rounded network is the trained one. Letters are tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from network import BLOCK, Shape, angles, rounded
from write_onnx import write

HERE = Path(__file__).parent
Array = np.ndarray
EPSILON = 1e-5
SEED, ROUND_FROM = 7, 0.6


@dataclass
class Tape:
    """Steps backward, in the order of the steps forward, and the gradients of parameters by name.

    Every function below computes a value and leaves what turns the gradient of that value into those of its operands.
    """

    weights: dict[str, Array]
    steps: list[Callable[[], None]] = field(default_factory=list)
    found: dict[str, Array] = field(default_factory=dict)

    def backward(self) -> None:
        for step in reversed(self.steps):
            step()


@dataclass
class Value:
    data: Array
    slope: Array | float = 0.0


def product(tape: Tape, x: Value, name: str) -> Value:
    """Rows times weights (outputs, inputs)."""
    weight = tape.weights[name]
    made = Value(x.data @ weight.T)

    def back() -> None:
        slope = np.asarray(made.slope)
        tape.found[name] = slope.reshape(-1, slope.shape[-1]).T @ x.data.reshape(-1, x.data.shape[-1])
        x.slope = x.slope + slope @ weight

    tape.steps.append(back)
    return made


def norm(tape: Tape, x: Value, name: str) -> Value:
    scale = tape.weights[name]
    length = 1 / np.sqrt((x.data**2).mean(-1, keepdims=True) + EPSILON)
    even = x.data * length
    made = Value(even * scale)

    def back() -> None:
        slope = np.asarray(made.slope)
        tape.found[name] = (slope * even).reshape(-1, len(scale)).sum(0)
        inner = slope * scale
        x.slope = x.slope + length * (inner - even * (inner * even).mean(-1, keepdims=True))

    tape.steps.append(back)
    return made


def summed(tape: Tape, a: Value, b: Value) -> Value:
    made = Value(a.data + b.data)

    def back() -> None:
        a.slope, b.slope = a.slope + made.slope, b.slope + made.slope

    tape.steps.append(back)
    return made


def gated(tape: Tape, gate: Value, x: Value) -> Value:
    """gate * sigmoid(gate) * x."""
    share = 1 / (1 + np.exp(-gate.data))
    made = Value(gate.data * share * x.data)

    def back() -> None:
        gate.slope = gate.slope + made.slope * x.data * share * (1 + gate.data * (1 - share))
        x.slope = x.slope + made.slope * gate.data * share

    tape.steps.append(back)
    return made


def turned(x: Array, cosine: Array, sine: Array) -> Array:
    """Halves of the last axis turned by the angles of their positions (the last axis but one)."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)


def attention(tape: Tape, x: Value, shape: Shape) -> Value:
    """Queries, keys and values side by side (B, T, heads * width) become what the heads found."""
    batch, length, _ = x.data.shape
    groups, ends = shape.queries // shape.shared, np.cumsum((shape.queries, shape.shared)) * shape.width
    parts = [p.reshape(batch, length, -1, shape.width).swapaxes(1, 2) for p in np.split(x.data, ends, -1)]
    cosine, sine = (table[:length] for table in angles(shape))
    query, key = turned(parts[0], cosine, sine), turned(parts[1], cosine, sine)
    query = query.reshape(batch, shape.shared, groups, length, shape.width)
    key, value = key[:, :, None], parts[2][:, :, None]
    scale = shape.width**-0.5
    scores = np.where(np.tril(np.ones((length, length), bool)), query @ key.swapaxes(-1, -2) * scale, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    found = shares @ value
    made = Value(found.reshape(batch, shape.queries, length, shape.width).swapaxes(1, 2).reshape(batch, length, -1))

    def back() -> None:
        slope = np.asarray(made.slope).reshape(batch, length, shape.queries, shape.width).swapaxes(1, 2)
        slope = slope.reshape(found.shape)
        value_slope = (shares.swapaxes(-1, -2) @ slope).sum(2)
        inner = slope @ value.swapaxes(-1, -2)
        inner = shares * (inner - (inner * shares).sum(-1, keepdims=True)) * scale
        query_slope = turned((inner @ key).reshape(batch, shape.queries, length, shape.width), cosine, -sine)
        key_slope = turned((inner.swapaxes(-1, -2) @ query).sum(2), cosine, -sine)
        rows = (p.swapaxes(1, 2).reshape(batch, length, -1) for p in (query_slope, key_slope, value_slope))
        x.slope = x.slope + np.concatenate(list(rows), -1)

    tape.steps.append(back)
    return made


def loss_of(tape: Tape, tokens: Array, shape: Shape) -> float:
    """How surprised the network is by every next token (B, T + 1), in nats; gradients are left on the tape."""
    x = Value(tape.weights["embedding"][tokens[:, :-1]])
    start = x
    for k in range(shape.layers):
        heads = attention(tape, product(tape, norm(tape, x, f"{k}.norm"), f"{k}.heads"), shape)
        x = summed(tape, x, product(tape, heads, f"{k}.joined"))
        rows = norm(tape, x, f"{k}.second_norm")
        inner = gated(tape, product(tape, rows, f"{k}.gate"), product(tape, rows, f"{k}.up"))
        x = summed(tape, x, product(tape, inner, f"{k}.down"))
    scores = product(tape, norm(tape, x, "norm"), "head")
    shares = np.exp(scores.data - scores.data.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    wanted = np.take_along_axis(shares, tokens[:, 1:, None], -1)
    scores.slope = (shares - (np.arange(shape.tokens) == tokens[:, 1:, None])) / wanted.size
    tape.backward()
    tape.found["embedding"] = np.zeros_like(tape.weights["embedding"])
    np.add.at(tape.found["embedding"], tokens[:, :-1], start.slope)
    return float(-np.log(wanted + 1e-9).mean())


def first_weights(shape: Shape, dice: np.random.Generator) -> dict[str, Array]:
    """Normal numbers, smaller where more are summed; norms of ones."""
    rows = {"embedding": (shape.tokens, shape.depth), "norm": (shape.depth,), "head": (shape.tokens, shape.depth)}
    for k in range(shape.layers):
        rows |= {
            f"{k}.norm": (shape.depth,),
            f"{k}.heads": ((shape.queries + 2 * shape.shared) * shape.width, shape.depth),
            f"{k}.joined": (shape.depth, shape.queries * shape.width),
            f"{k}.second_norm": (shape.depth,),
            f"{k}.gate": (shape.inner, shape.depth),
            f"{k}.up": (shape.inner, shape.depth),
            f"{k}.down": (shape.depth, shape.inner),
        }
    made = {
        name: dice.normal(size=size) / np.sqrt(size[-1]) if len(size) > 1 else np.ones(size)
        for name, size in rows.items()
    }
    return {name: data.astype(np.float32) for name, data in made.items()}


def train(tokens: Array, shape: Shape, steps: int) -> dict[str, Array]:
    """Adam with a rate that falls as a cosine."""
    dice = np.random.default_rng(SEED)
    weights = first_weights(shape, dice)
    first, second = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    for step in range(steps):
        starts = dice.integers(0, len(tokens) - shape.room, 12)
        rows = np.stack([tokens[start : start + shape.room] for start in starts])
        tape = Tape(rounded(weights) if step >= ROUND_FROM * steps else weights)
        loss = loss_of(tape, rows, shape)
        rate = 3e-3 * min(1.0, (step + 1) / 50) * 0.5 * (1 + np.cos(np.pi * step / steps))
        for name, slope in tape.found.items():
            first[name] += 0.1 * (slope - first[name])
            second[name] += 0.01 * (slope**2 - second[name])
            bias = (1 - 0.9 ** (step + 1)), (1 - 0.99 ** (step + 1))
            weights[name] -= rate * (first[name] / bias[0]) / (np.sqrt(second[name] / bias[1]) + 1e-8)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:5}  {loss:.3f} nats a letter", flush=True)
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200)
    arguments = parser.parse_args()
    text = (HERE / "text.txt").read_text(encoding="utf-8")
    letters = "".join(sorted(set(text)))
    tokens = np.array([letters.index(letter) for letter in text])
    shape = Shape(tokens=len(letters))
    weights = train(tokens, shape, arguments.steps)
    count = sum(data.size for data in weights.values())
    print(f"{count:,} weights, blocks of {BLOCK}")
    write(HERE / "model.onnx", weights, shape, letters)


if __name__ == "__main__":
    main()
