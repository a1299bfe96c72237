"""Floor 4: graph passes. ``PASSES`` is the order in which they run."""

from microc.transform import (
    blocked_turns,
    bounds,
    canonicalise,
    common_subexpressions,
    constant_channels,
    dead_channels,
    dead_code,
    duplicate_channels,
    dynamic_range,
    expand,
    fold_constants,
    fuse,
    layer_norm,
    layout,
    legalize,
    narrow_views,
    opened_weights,
    parallel_layers,
    qdq,
    raw_inputs,
    rounding,
    scale_axis,
    scanned_rows,
    unary_functions,
    weight_dtype,
)

NORMALISING = (
    expand.PASS,
    rounding.PASS,
    dynamic_range.PASS,
    qdq.PASS,
    fold_constants.PASS,
    canonicalise.PASS,
    layout.PASS,
    canonicalise.PASS,
    raw_inputs.SCALES,
)
"""What comes before the whole run becomes a step of a stream, where that is wanted."""

LOWERING = (
    blocked_turns.PASS,
    scanned_rows.PASS,
    raw_inputs.SHIFTS,
    legalize.PASS,
    fold_constants.PASS,
    parallel_layers.PASS,
    canonicalise.PASS,
    scale_axis.PASS,
    constant_channels.PASS,
    duplicate_channels.PASS,
    dead_channels.PASS,
    unary_functions.PASS,
    bounds.PASS,
    layer_norm.PASS,
    weight_dtype.PASS,
    common_subexpressions.PASS,
    dead_code.PASS,
    narrow_views.PASS,
    opened_weights.PASS,
    fuse.PASS,
)

PASSES = (*NORMALISING, *LOWERING)
"""Names may repeat: switching a pass off switches off every run of it."""
