# SPDX-License-Identifier: Apache-2.0
"""Limits together: whatever is limited, a network fits and computes the same numbers, or is refused by one clear error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.codegen.c.source import shared_files
from microc.compiler.fit.budget import BoardCapacity, arena_bytes, flash_bytes
from microc.compiler.fit.search import board_capacity
from microc.compiler.model import read_model
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.errors import FitError
from microc.graph.ir import Graph
from microc.module import Module
from microc.run.desktop.load import build_library
from microc.target import target_for
from tests.compiler.sizes.test_family import (
    controlled,
    image,
    inputs_of,
    mlp,
    open_means,
    quantised_image,
    saved,
    sequence,
    several,
)
from tests.compiler.test_attention import network as attention
from tests.support import digits
from tests.support.campaign import everything
from tests.support.memories import layers, two_memories
from tests.transform.network import random_inputs
from tests.transform.test_blocked_loops import recurrent
from tests.transform.test_prewidened_weights import layers as packed_layers

NETWORKS: Mapping[str, Callable[[], Graph]] = {
    "digits": lambda: read_model(digits.INT8, make_options()),
    "attention": attention,
    "recurrent": lambda: recurrent(13, depth=16, units=8),
    "packed": lambda: packed_layers(rows=40),
    "dense": lambda: layers(2),
}
CORES = ("cortex-m0plus", "cortex-m4", "rv32imc")
DRAWS = 300 if everything() else 16


def drawn(seed: int) -> tuple[str, str, dict[str, Any], dict[str, float]]:
    """A network, a core, options, and shares of what the network takes without limits."""
    dice = np.random.default_rng(seed)
    name, core = (str(dice.choice(each)) for each in (list(NETWORKS), CORES))
    options = {
        "optimize": str(dice.choice(["speed", "balanced", "size"])),
        "io_in_arena": bool(dice.integers(2)),
        "opt_level": int(dice.choice([2, 2, 0])),
    }
    kinds = [kind for kind in ("ram", "flash", "board_ram", "board_flash", "memories") if dice.random() < 0.4]
    return name, core, options, {kind: float(dice.uniform(0.5, 1.1)) for kind in kinds}


@pytest.mark.parametrize("seed", range(DRAWS))
def test_limits_hold_together(seed: int, tmp_path: Path) -> None:
    name, core, options, shares = drawn(seed)
    graph, target = NETWORKS[name](), target_for(core)
    free = compile_model(graph, target, make_options(**options))
    least = {"ram": arena_bytes(free), "flash": flash_bytes(free)}
    limits = {kind: max(1, int(shares[kind] * least[kind])) for kind in least if kind in shares}
    ram, flash = (int(shares.get(f"board_{kind}", 0) * least[kind]) for kind in least)
    room = BoardCapacity(ram=ram, flash=flash)
    if "memories" in shares:
        memories = board_capacity(two_memories(tmp_path, max(64, int(shares["memories"] * least["ram"])))).memories
        room = replace(room, memories=memories)
    try:
        within = compile_model(graph, target, make_options(**options, **limits), capacity=room)
    except FitError as error:
        assert error.hint and ("cannot hold" in str(error) or "does not fit" in str(error))
        return
    check_limits(within, limits)
    _, *tried = within.trials
    assert bool(tried) or within.fingerprint == free.fingerprint or "memories" in shares
    inputs = random_inputs(graph)
    plain, small = (build_library(shared_files(module, microc.__version__)) for module in (free, within))
    results = (library(*inputs.values()) for library in (small, plain))
    pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in results), strict=True)
    for found, wanted in pairs:
        if found.dtype.kind == "f":  # sums of other blocks and tiles round differently: some units of the last place
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-4)
        else:
            np.testing.assert_array_equal(found, wanted)


OPEN_NETWORKS: Mapping[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "mlp": (mlp, {"batch": 20}),
    "sequence": (sequence, {"seq": 700}),
    "image": (image, {"height": 24, "width": 30}),
    "means": (lambda: open_means("INT8"), {"x:1": 20, "x:2": 9}),
    "loop": (controlled, {"seq": 12}),
    "quantised": (quantised_image, {"x:0": 3}),
}
OPEN_DRAWS = 100 if everything() else 8


@pytest.mark.parametrize("seed", range(OPEN_DRAWS))
def test_limits_hold_together_with_open_sizes(seed: int, tmp_path: Path) -> None:
    """At sizes that are drawn, too, limited code computes what code without limits does."""
    dice = np.random.default_rng(seed)
    name, core = str(dice.choice(list(OPEN_NETWORKS))), target_for(str(dice.choice(CORES)))
    make, bounds = OPEN_NETWORKS[name]
    path = saved(make(), tmp_path)
    options: dict[str, Any] = {
        "bounds": bounds,
        "optimize": str(dice.choice(["speed", "balanced", "size"])),
        "io_in_arena": bool(dice.integers(2)),
    }
    free = compile_model(path, core, make_options(**options))
    least = {"ram": arena_bytes(free), "flash": flash_bytes(free)}
    limits = {kind: max(1, int(dice.uniform(0.6, 1.2) * least[kind])) for kind in least if dice.random() < 0.6}
    board = {kind: int(dice.uniform(0.6, 1.3) * least[kind]) if dice.random() < 0.3 else 0 for kind in least}
    capacity = BoardCapacity(flash=board["flash"], ram=board["ram"])
    try:
        within = compile_model(path, core, make_options(**options, **limits), capacity=capacity)
    except FitError as error:
        assert error.hint
        return
    check_limits(within, limits)
    plain, small = (build_library(shared_files(module, microc.__version__)) for module in (free, within))
    for _ in range(3):
        sizes = {
            size["name"]: int(dice.integers(size["minimum"], size["maximum"], endpoint=True))
            for size in plain.manifest["sizes"]
        }
        arrays = inputs_of(plain, sizes)
        for found, wanted in zip(several(small(*arrays)), several(plain(*arrays)), strict=True):
            if found.dtype.kind == "f":
                np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-4)
            else:
                np.testing.assert_array_equal(found, wanted)


def check_limits(module: Module, limits: Mapping[str, int]) -> None:
    """Check that a network keeps its limits of RAM and flash, as far as estimates of its code can tell."""
    assert "ram" not in limits or arena_bytes(module) <= limits["ram"]
    assert (
        "flash" not in limits
        or flash_bytes(module) <= limits["flash"]
        or not is_over_for_certain(module, limits["flash"])
    )


def is_over_for_certain(module: Module, limit: int) -> bool:
    """Code is estimated, so that a network a little above its flash budget may fit."""
    return module.const_bytes + 0.75 * (flash_bytes(module) - module.const_bytes) > limit


def test_open_sizes_keep_within_limits(tmp_path: Path) -> None:
    """Flash by another goal; RAM has no way yet, which is said."""
    path, core, bounds = tmp_path / "open.onnx", target_for("cortex-m4"), {"batch": 20}
    path.write_bytes(mlp().SerializeToString())
    fast, small = (compile_model(path, core, make_options(bounds=bounds, optimize=goal)) for goal in ("speed", "size"))
    assert flash_bytes(small) < flash_bytes(fast)
    limited = make_options(bounds=bounds, optimize="speed", flash=flash_bytes(small))
    within = compile_model(path, core, limited)
    assert flash_bytes(within) <= flash_bytes(small) and len(within.trials) > 1
    with pytest.raises(FitError, match="ram: the arena exceeds its limit") as caught:
        microc.compile(path, "cortex-m4", bounds=bounds, ram=arena_bytes(fast) - 4)
    assert "fix the sizes" in str(caught.value.hint)
