"""Floor 4: graph passes. ``PASSES`` is the order in which they run."""

from microc.transform import (
    bounds,
    canonicalise,
    common_subexpressions,
    constant_channels,
    dead_channels,
    dead_code,
    duplicate_channels,
    dynamic_range,
    fold_constants,
    fuse,
    layout,
    legalize,
    qdq,
    rounding,
    unary_functions,
)

PASSES = (
    rounding.PASS,
    dynamic_range.PASS,
    qdq.PASS,
    fold_constants.PASS,
    canonicalise.PASS,
    layout.PASS,
    canonicalise.PASS,
    legalize.PASS,
    fold_constants.PASS,
    canonicalise.PASS,
    constant_channels.PASS,
    duplicate_channels.PASS,
    dead_channels.PASS,
    unary_functions.PASS,
    bounds.PASS,
    common_subexpressions.PASS,
    dead_code.PASS,
    fuse.PASS,
)
"""Names may repeat: switching a pass off switches off every run of it."""
