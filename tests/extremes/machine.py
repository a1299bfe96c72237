# SPDX-License-Identifier: Apache-2.0
"""Many networks as one program of this computer under sanitizers; one that fails costs the program, not the others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from microc.base.dtypes import Array, to_numpy
from microc.codegen.c.source import make_model_context, render_network
from microc.codegen.render import Name
from microc.module import Module

FLAGS = ("-std=c99", "-O0", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-w")
_FUNCTION = re.compile(r"^(?:static [\w ]+?|\w+_KERNEL) \**(\w+)\(", re.MULTILINE)


class BuildError(Exception):
    """What the compiler said first."""


@dataclass(frozen=True)
class Job:
    """A planned module and what it runs on."""

    module: Module
    runs: tuple[tuple[Array, ...], ...]


_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *block(size_t size) { void *p = malloc(size ? size : 1); memset(p, 0xA5, size ? size : 1); return p; }
static void *taken(FILE *from, size_t size)
{
    void *p = block(size);
    if (size && fread(p, 1, size, from) != size) exit(3);
    return p;
}
static void given(FILE *to, void *p, size_t size) { fwrite(p, 1, size, to); fflush(to); free(p); }
%s
int main(int count, char **words)
{
    FILE *from = fopen(words[1], "rb"), *to = fopen(words[2], "ab");
    if (count < 4 || !from || !to) return 4;
    fseek(from, atol(words[4]), SEEK_SET);
    switch (atoi(words[3])) {
%s
    }
    fclose(from);
    fclose(to);
    return 0;
}
"""


def _driver(jobs: Sequence[Job]) -> str:
    """A function for each network, called in order from any of them on."""
    functions, cases = [], []
    for k, job in enumerate(jobs):
        m, name = job.module, job.module.name
        assert m.plan is not None
        ins = [f"    in.{n} = taken(from, {m.values[n].nbytes});" for n in m.inputs]
        outs = [f"    out.{n} = block({m.values[n].nbytes});" for n in m.outputs]
        done = [f"    free((void *)in.{n});" for n in m.inputs]
        done += [f"    given(to, (void *)out.{n}, {m.values[n].nbytes});" for n in m.outputs]
        body = "\n".join((*ins, *outs, f"    if ({name}_run(arena, &in, &out)) exit(5);", *done))
        functions.append(
            f'#include "{name}.h"\nstatic void go_{name}(FILE *from, FILE *to)\n{{\n'
            f"    struct {name}_inputs in; struct {name}_outputs out;\n"
            f"    void *arena = block({m.plan.size});\n    {name}_reset(arena);\n"
            f"    for (int turn = 0; turn < {len(job.runs)}; ++turn) {{\n{body}\n    }}\n    free(arena);\n}}"
        )
        cases.append(f"    case {k}: go_{name}(from, to); /* fall through */")
    return _MAIN % ("\n".join(functions), "\n".join(cases))


def build(jobs: Sequence[Job], folder: Path, compiler: str = "gcc", flags: Sequence[str] = FLAGS) -> Path:
    """The program of all networks, whose names differ; BuildError where the compiler refuses one."""
    sources = []
    for job in jobs:
        context = replace(make_model_context(job.module, "0"), stem=Name(job.module.name))
        files, stem = render_network(context), job.module.name
        for name in (f"{stem}.h", f"{stem}_data.h"):
            (folder / name).write_text(files[name])
        sources.append(_apart(files[f"{stem}.c"] + files[f"{stem}_data.c"], stem))
    (folder / "main.c").write_text("\n".join((*sources, _driver(jobs))))
    program = folder / "program"
    argv = [compiler, *flags, "-D_ISOC11_SOURCE", f"-I{folder}", str(folder / "main.c"), "-o", str(program), "-lm"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr[:200]))
    return program


def _apart(source: str, stem: str) -> str:
    """A network's source with names of its own for its functions, so that it can follow another one in the same file."""
    names = sorted(set(_FUNCTION.findall(source)))
    return re.sub(rf"\b({'|'.join(names)})\b", rf"\1_{stem}", source) if names else source


def run(jobs: Sequence[Job], program: Path, folder: Path, seconds: int = 600) -> list[list[list[Array]] | str]:
    """The outputs of every run of each network, or what the sanitizers said; TimeoutExpired after so many ``seconds``."""
    parts = [b"".join(a.tobytes() for arrays in job.runs for a in arrays) for job in jobs]
    (folder / "data").write_bytes(b"".join(parts))
    starts = np.cumsum([0, *map(len, parts)])
    found: list[list[list[Array]] | str] = []
    while len(found) < len(jobs):
        first, result = len(found), folder / "result"
        result.unlink(missing_ok=True)
        argv = [str(program), str(folder / "data"), str(result), str(first), str(starts[first])]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=seconds)
        raw = result.read_bytes()
        for job in jobs[first:]:
            outputs, raw = _outputs(job, raw)
            if outputs is None:
                assert done.returncode, "the program ended early"
                found.append(_first_line(done.stderr))
                break
            found.append(outputs)
    return found


def _outputs(job: Job, raw: bytes) -> tuple[list[list[Array]] | None, bytes]:
    """What one network wrote, and the rest; None where it did not write all."""
    values = [job.module.values[name] for name in job.module.outputs]
    results = []
    for _ in job.runs:
        row = []
        for value in values:
            if len(raw) < value.nbytes:
                return None, b""
            row.append(np.frombuffer(raw[: value.nbytes], to_numpy(value.dtype)).reshape(value.shape))
            raw = raw[value.nbytes :]
        results.append(row)
    return results, raw


def _first_line(text: str) -> str:
    """The line that names the fault, without the place."""
    for line in text.splitlines():
        if "runtime error" in line or "ERROR: " in line:
            return re.sub(r"^.*?((runtime error|ERROR): )", r"\1", line)[:200]
    return text[-200:]
