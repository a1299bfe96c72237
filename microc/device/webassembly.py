"""The compiler for WebAssembly: C sources as one module, for pages and for Node."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from microc.codegen.compiler_options import webassembly
from microc.device.toolchain import run_compiler
from microc.errors import ToolError
from microc.target import Target

_PACKAGES = "clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32"


def compile_module(sources: Mapping[str, str], target: Target) -> bytes:
    """The module of C sources, which are given with their headers, all by file name. ToolError where there is no compiler for
    it, with what it says where it refuses."""
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text)
        code = [str(Path(folder) / name) for name in sources if name.endswith(".c")]
        module = Path(folder) / "network.wasm"
        run_compiler((_clang(), *webassembly(target).split(), f"-I{folder}", *code, "-o", str(module)), Path(folder))
        return module.read_bytes()


def _clang() -> str:
    """A clang that has a linker for WebAssembly beside it."""
    for end in ("", *(f"-{version}" for version in range(22, 13, -1))):
        if shutil.which(f"clang{end}") and shutil.which(f"wasm-ld{end}"):
            return f"clang{end}"
    raise ToolError(
        "there is no clang with a linker for WebAssembly (wasm-ld) on PATH",
        hint=f"apt-get install -y --no-install-recommends {_PACKAGES}",
    )
