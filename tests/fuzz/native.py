# SPDX-License-Identifier: Apache-2.0
"""Generated C of many networks as one program under the address and undefined-behaviour sanitizers.

One translation unit a network, one link for all; each network runs in a process of its own, on memory of exactly the bytes that
it asks for, so that a step beyond them is seen. Twice, since state goes from run to run.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array

RUNS = 2
SANITIZERS = "-fsanitize=address,undefined,float-cast-overflow"
_SECONDS = 20  # of one network
_MANIFEST = re.compile(r"const int8_t microc_manifest\[\d+\] = \{.*?\};", re.DOTALL)
_OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=0"}

_MAIN = """\
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct net {
    int (*run)(void *, const void *const *, void *const *);
    void (*reset)(void *);
    size_t arena;
    const size_t *inputs, *outputs;
};

%(declarations)s

static const struct net nets[] = {
%(rows)s
};

static int serve(const struct net *net, unsigned k)
{
    void *in[64], *out[64];
    char name[32];
    unsigned i, step;
    void *arena = malloc(net->arena + !net->arena);
    FILE *file;
    snprintf(name, sizeof name, "%%u.err", k);
    if (!freopen(name, "w", stderr)) return 9;
    snprintf(name, sizeof name, "%%u.in", k);
    file = fopen(name, "rb");
    for (i = 0; net->inputs[i] != (size_t)-1; i++) {
        in[i] = malloc(net->inputs[i] + !net->inputs[i]);
        if (fread(in[i], 1, net->inputs[i], file) != net->inputs[i]) return 9;
    }
    fclose(file);
    for (i = 0; net->outputs[i] != (size_t)-1; i++) out[i] = malloc(net->outputs[i] + !net->outputs[i]);
    snprintf(name, sizeof name, "%%u.out", k);
    file = fopen(name, "wb");
    net->reset(arena);
    for (step = 0; step < %(runs)d; step++) {
        if (net->run(arena, (const void *const *)in, out) != 0) return 8;
        for (i = 0; net->outputs[i] != (size_t)-1; i++) fwrite(out[i], 1, net->outputs[i], file);
    }
    fclose(file);
    return 0;
}

int main(void)
{
    unsigned k;
    for (k = 0; k < sizeof nets / sizeof nets[0]; k++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            struct rlimit limit = {%(seconds)d, %(seconds)d};
            setrlimit(RLIMIT_CPU, &limit);
            _exit(serve(&nets[k], k));
        }
        waitpid(child, &status, 0);
        printf("%%u %%d\\n", k, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Net:
    """A compiled network: its C by file name, its manifest, and one array for each input."""

    sources: Mapping[str, str]
    manifest: Mapping[str, Any]
    inputs: Sequence[Array]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a network did: ``outputs`` of each run, or the ``fault`` that ended it."""

    outputs: tuple[tuple[Array, ...], ...]
    fault: str


class BuildFault(Exception):
    """The generated C does not compile; ``nets`` are those at fault."""

    def __init__(self, nets: dict[int, str]) -> None:
        super().__init__(str(nets))
        self.nets = nets


def run_all(nets: Sequence[Net], folder: Path, compiler: str = "clang") -> list[Ran]:
    """Compile and run the networks; BuildFault where some do not compile."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    declarations, rows, units = [], [], []
    for k, net in enumerate(nets):
        units.append(_write(net, k, folder))
        sizes = {
            side: "".join(f"{tensor['bytes']}u, " for tensor in _tensors(net, side)) for side in ("inputs", "outputs")
        }
        declarations.append(f"int run_{k}(void *, const void *const *, void *const *);\nvoid reset_{k}(void *);")
        declarations += [f"static const size_t {side}_{k}[] = {{{text}(size_t)-1}};" for side, text in sizes.items()]
        rows.append(f"    {{run_{k}, reset_{k}, {net.manifest['arena_size']}u, inputs_{k}, outputs_{k}}},")
    main = _MAIN % {"declarations": "\n".join(declarations), "rows": "\n".join(rows), "runs": RUNS, "seconds": _SECONDS}
    (folder / "main.c").write_text(main)
    _compile(folder, units, compiler)
    done = subprocess.run(
        [folder / "all"], cwd=folder, env=_OPTIONS, capture_output=True, text=True, check=False, timeout=600,
        preexec_fn=_unlimited,
    )  # fmt: skip
    codes = {int(k): int(code) for k, code in (line.split() for line in done.stdout.splitlines())}
    return [_result(net, k, codes.get(k, -99), folder) for k, net in enumerate(nets)]


def _write(net: Net, k: int, folder: Path) -> str:
    own = folder / str(k)
    own.mkdir()
    for name, text in net.sources.items():
        (own / name).write_text(_MANIFEST.sub("const int8_t microc_manifest[1] = {0};", text))
    (folder / f"{k}.in").write_bytes(b"".join(array.tobytes() for array in net.inputs))
    names = "".join(
        f"#define microc_{n} {n}_{k}\n" for n in ("run", "reset", "run_batch", "run_kernel", "runs_here", "manifest")
    )
    unit = names + "".join(f'#include "{k}/{n}"\n' for n in ("shared.c", "model_data.c", "model.c"))
    (folder / f"{k}.c").write_text(unit)
    return f"{k}.c"


def _compile(folder: Path, units: Sequence[str], compiler: str) -> None:
    flags = [compiler, "-std=c99", "-O0", "-g0", "-w", SANITIZERS, "-fno-sanitize-recover=all"]
    argv = [*flags, "-std=gnu11", "main.c", *units, "-o", "all", "-lm"]
    options: dict[str, Any] = {
        "cwd": folder,
        "capture_output": True,
        "text": True,
        "check": False,
        "preexec_fn": _unlimited,
    }
    done = subprocess.run(argv, **options)
    if done.returncode == 0:
        return
    faults = {}
    for k, unit in enumerate(units):
        one = subprocess.run([*flags, "-fsyntax-only", unit], **options)
        if one.returncode != 0:
            faults[k] = one.stderr[:2000]
    raise BuildFault(faults or dict.fromkeys(range(len(units)), done.stderr[:2000]))


def _unlimited() -> None:
    """The sanitizer's shadow memory needs the address space that this process may not have."""
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _tensors(net: Net, side: str) -> list[dict[str, Any]]:
    tensors = {tensor["name"]: tensor for tensor in net.manifest["tensors"]}
    return [tensors[name] for name in net.manifest[side]]


def _result(net: Net, k: int, code: int, folder: Path) -> Ran:
    if code != 0:
        said = (folder / f"{k}.err").read_text(errors="replace") if (folder / f"{k}.err").is_file() else ""
        line = next((s for s in said.splitlines() if "error" in s.lower()), said[:200])
        return Ran((), f"exit {code}: {line[:300]}")
    data, at, runs = (folder / f"{k}.out").read_bytes(), 0, []
    for _ in range(RUNS):
        outputs = []
        for tensor in _tensors(net, "outputs"):
            dtype = dtypes.to_numpy(tensor["dtype"])
            outputs.append(np.frombuffer(data[at : at + tensor["bytes"]], dtype).reshape(tensor["shape"]))
            at += tensor["bytes"]
        runs.append(tuple(outputs))
    return Ran(tuple(runs), "")
