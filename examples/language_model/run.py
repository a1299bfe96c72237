# SPDX-License-Identifier: Apache-2.0
"""A language model on a microcontroller: letters go to a board over its serial line, and the letter that comes next comes back.

    python examples/language_model/run.py ["the old clock"] [--letters 60] [--board mps2-an500] [--port PORT]

The board keeps keys, values and the position from letter to letter; the host feeds back what it answered. The same network on
this computer says whether the letters are right.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

import microc
from microc.run.board_project import build_project, open_project

MODEL = Path(__file__).parent / "model.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="the fisher ")
    parser.add_argument("--letters", type=int, default=60)
    parser.add_argument("--board", default="mps2-an500")
    parser.add_argument("--port", default="")
    arguments = parser.parse_args()
    model = onnx.load(MODEL)
    letters = next(p.value for p in model.metadata_props if p.key == "letters")
    room = model.graph.input[2].type.tensor_type.shape.dim[2].dim_value
    state = {i.name: i.name.replace("past", "present") for i in model.graph.input if i.name.startswith("past")}
    state["position"] = "next_position"
    prompt = [letters.find(letter) for letter in arguments.prompt]
    count = min(arguments.letters, room - len(prompt))
    if not prompt or min(prompt) < 0 or count < 1:
        raise SystemExit(f"a prompt of 1 to {room - 1} of the letters {letters!r}")
    host = microc.compile(MODEL, state=state)
    right = generate(lambda token: host(token), prompt, count)
    with tempfile.TemporaryDirectory() as folder:
        program = microc.compile(MODEL, board=arguments.board, state=state)
        project = open_project(program.write(Path(folder) / "language_model"))
        build_project(project)
        with microc.Device(project, arguments.port) as device:
            said = generate(lambda token: device.run(token), prompt, count)
            cost = device.profile()
    print(arguments.prompt + "".join(letters[token] for token in said))
    print(f"{'the same' if said == right else 'other'} letters as on this computer")
    report = program.report()
    print(f"{report['weight_bytes']:,} bytes of weights and tables, {report['arena']:,} of arena, caches among them")
    print(f"{cost.time:,} {cost.unit} a letter on {cost.board}")


def generate(step: Callable[[np.ndarray], object], prompt: list[int], count: int) -> list[int]:
    """The letters that follow the prompt, each the likeliest behind all before it."""
    made: list[int] = []
    waiting = list(prompt)
    while len(made) < count:
        token = np.array([[waiting.pop(0)]], np.int32)
        answer = int(np.asarray(step(token)).item())
        if not waiting:
            made.append(answer)
            waiting.append(answer)
    return made


if __name__ == "__main__":
    main()
