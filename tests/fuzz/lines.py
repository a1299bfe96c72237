# SPDX-License-Identifier: Apache-2.0
"""Frames against the runtime (libFuzzer), and answers of any kind against the host's client."""

from __future__ import annotations

import random
import re
import subprocess
import time
from pathlib import Path

from microc.base import file_access
from microc.device.line_protocol import Frame, Operation, encode_frame
from microc.errors import MicrocError
from tests.device.liar import Liar, lies
from tests.device.test_liar import COMMANDS, PAIRS, Teller, client

_LIMIT = 5.0  # seconds of a command, whose own limits are below one


def frames(fuzzer: str, seconds: float, seed: int, folder: Path) -> tuple[dict[str, int], str]:
    """Run a fuzzer of the runtime, ``fuzz_rpc`` or ``fuzz_slot``; what it counted, and what it said if it found something."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    make = ["make", "--no-print-directory", "-C", str(file_access.runtime_c_folder()), f"BUILD={folder.resolve()}"]
    built = subprocess.run([*make, f"{folder.resolve()}/{fuzzer}"], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        return {}, "the fuzzer cannot be built: " + built.stderr[-1000:]
    done = subprocess.run(
        [folder / fuzzer, corpus, f"-max_total_time={int(seconds)}", f"-seed={seed % 2**31 or 1}", "-max_len=2048",
         "-len_control=0", "-timeout=30", f"-artifact_prefix={folder}/"],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    last = re.findall(r"^frames: .*", done.stderr, re.MULTILINE)[-1:]
    counts = {name: int(count) for line in last for name, count in re.findall(r"([a-z][a-z ]*): (\d+)", line)}
    return counts, "" if done.returncode == 0 else done.stderr[-3000:]


def answers(seconds: float, seed: int) -> tuple[int, list[str]]:
    """Commands over boards that lie at random; how many commands, and what ended otherwise than in an answer or a refusal."""
    rng = random.Random(seed)
    deadline, count, found = time.monotonic() + seconds, 0, []
    while time.monotonic() < deadline:
        name, operation = rng.choice(PAIRS)
        board = Teller(rng.randrange(3), rng.randrange(6), rng.randrange(9), payload=rng.choice((32, 64, 4096)))
        state = rng.getstate()
        begin = time.monotonic()
        try:
            COMMANDS[name](client(Liar(board, operation, lambda reply, rng=rng: _answer(rng, reply))))  # type: ignore[misc]
        except MicrocError:
            pass
        except Exception as error:  # noqa: BLE001 - all of them are what is looked for
            found.append(f"{name} {operation.name}: {error!r}, {state[1][:2]}")
        if time.monotonic() - begin > _LIMIT:
            found.append(f"{name} {operation.name}: took {time.monotonic() - begin:.1f} s")
        count += 1
    return count, found


def _answer(rng: random.Random, reply: Frame) -> bytes:
    """Some of the known lies, and frames and bytes of any kind, one after another."""
    said = b""
    known = list(lies(Operation.MODEL).values())
    for _ in range(rng.choice((1, 1, 2, 5))):
        kind = rng.random()
        if kind < 0.4:
            said += rng.choice(known)(reply)
        elif kind < 0.5:
            said += rng.randbytes(rng.randrange(300))
        else:
            data = bytearray(reply.payload)
            for _ in range(rng.randrange(4) if data else 0):
                data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            status = rng.choice((0, 0, 0, rng.randrange(256)))
            said += encode_frame(Frame(reply.operation, reply.session, reply.sequence, status, bytes(data)))
    return said
