# SPDX-License-Identifier: Apache-2.0
"""A tensor unit of one's own beside a RISC-V core: what microc has to know of it."""

from microc.plugin import CORES, Plugin, Scratchpad, TensorUnit, with_unit

ACME = TensorUnit(
    "acme8",
    rows=8,  # it multiplies 8 x 8 by 8 x 8 bytes ...
    columns=8,
    depth=8,
    tile_cycles=8,  # ... in 8 cycles: 64 products a cycle
    input=Scratchpad(4 * 1024, align=8),
    weight=Scratchpad(8 * 1024, align=8),
    sums=Scratchpad(4 * 1024, align=8),
    bus=4,  # bytes that it moves in a cycle
    start=12,  # cycles before the first
)
PLUGIN = Plugin(cores=(with_unit(CORES["rv32imafc"], ACME),))
