"""The layers of a report: what each is, what it costs, and its C."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from microc.driver.measure.profile import short_layer
from microc.driver.report.size import live_bytes, shares
from microc.driver.report.words import milliseconds

if TYPE_CHECKING:
    from microc.driver.measure.profile import Profile

_FUNCTION = re.compile(
    r"^/\*\n(?: \*[^\n]*\n)+(?:[A-Z0-9_]+_OPTIMIZE\([^\n]*\)\n)?[A-Z0-9_]+_KERNEL (\w+)\([^\n]*\n(?:(?!\}\n)[^\n]*\n)*\}$",
    re.MULTILINE,
)
"""A kernel as :mod:`microc.codegen.kernels` prints it, with the comment before it."""


def layers_of(
    manifest: Mapping[str, Any], model_c: str, clock_hz: int | None, profile: Profile | None
) -> list[dict[str, Any]]:
    """One entry for each step, plain data. ``share``: of the time that was measured, or of the estimated cycles. Code of a
    function that several steps share is divided among them; ``linked`` says whether it was measured."""
    kernels = manifest["kernels"]
    functions = {found[1]: found[0].split("\n") for found in _FUNCTION.finditer(model_c)}
    code, arena = _code(manifest), live_bytes(manifest)
    total = sum(kernel["estimated_cycles"] for kernel in kernels) or 1
    names = short_names([kernel["layer"] for kernel in kernels])
    layers = []
    for step, kernel in enumerate(kernels):
        timed = profile.kernels[step] if profile else None
        linked = timed is not None and timed.code is not None
        constants = sum(each["bytes"] for each in kernel["constants"])
        sizes = (timed.code, timed.constants) if timed is not None and linked else (code[step], constants)
        cycles = kernel["estimated_cycles"]
        layers.append(
            {
                "step": step,
                "name": names[step],
                "layer": kernel["layer"],
                "op": kernel["op"],
                "function": kernel["function"],
                "operators": [_operator(each) for each in kernel.get("operators", ())],
                "inputs": list(kernel["inputs"]),
                "outputs": list(kernel["outputs"]),
                "workspaces": list(kernel["workspaces"]),
                "rows_of": list(kernel["streamed"]),
                "macs": kernel["macs"],
                "cycles": cycles,
                "milliseconds": milliseconds(cycles, clock_hz),
                "instructions": kernel["estimated_instructions"],
                "time": timed.time if timed else None,
                "share": timed.share if timed else cycles / total,
                "code": sizes[0],
                "constants": sizes[1],
                "linked": linked,
                "arena": arena[step],
                "rule": kernel["rule"],
                "shipped": kernel.get("shipped", False),
                "schedule": kernel["schedule"],
                "c": functions.get(kernel["function"], []),
                **({"tensor_unit": dict(kernel["tensor_unit"])} if "tensor_unit" in kernel else {}),
            }
        )
    return layers


def short_names(layers: Sequence[str]) -> list[str]:
    """Layers without the model's file, and without the beginning of a path that all paths share."""
    found = [short_layer(layer) for layer in layers]
    paths = [name.partition(" ")[2].split("/")[:-1] for name in found]
    inner = [path for path in paths if path]
    together = takewhile(lambda words: len(set(words)) == 1, zip(*inner, strict=False)) if len(inner) > 1 else ()
    start = "".join(f"{words[0]}/" for words in together)
    return [name.replace(f" {start}", " ", 1) if path else name for name, path in zip(found, paths, strict=True)]


def slowest(data: Mapping[str, Any], count: int = 3) -> list[Mapping[str, Any]]:
    """The layers that take most of the time."""
    return sorted(data["layers"], key=lambda layer: (-layer["share"], layer["step"]))[:count]


def _code(manifest: Mapping[str, Any]) -> list[int]:
    """Bytes of every step's function, by the cost model; those that several share in parts."""
    kernels = manifest["kernels"]
    uses = Counter(kernel["function"] for kernel in kernels)
    parts = {k["function"]: iter(shares(k.get("estimated_code", 0), uses[k["function"]])) for k in kernels}
    return [next(parts[kernel["function"]]) for kernel in kernels]


def _operator(applied: Mapping[str, Any]) -> dict[str, Any]:
    attributes = [list(pair) for pair in applied["attributes"]]
    weights = [{**each, "shape": list(each["shape"])} for each in applied["weights"]]
    return {"op": applied["op"], "attributes": attributes, "weights": weights}
