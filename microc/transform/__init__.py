# SPDX-License-Identifier: Apache-2.0
"""Graph passes. ``PASSES`` contains all passes in the order in which they run."""

from microc.transform import (
    canonicalise,
    channel_removal,
    channels_last,
    fuse,
    loop_blocking,
    parallel_layers,
    scale_axis,
)
from microc.transform import canonicalise as common_subexpressions
from microc.transform import canonicalise as dead_code
from microc.transform import canonicalise as expand
from microc.transform import canonicalise as fold_constants
from microc.transform import canonicalise as layer_norm
from microc.transform import scale_axis as raw_inputs
from microc.transform.quantised import integer_ranges, legalize, qdq, unary_functions, weight_types
from microc.transform.quantised import legalize as rounding

NORMALISING = (
    expand.EXPAND_PASS,
    rounding.ROUNDING_PASS,
    weight_types.DYNAMIC_RANGE_PASS,
    qdq.PASS,
    fold_constants.FOLD_CONSTANTS_PASS,
    canonicalise.CANONICALISE_PASS,
    channels_last.LAYOUT_PASS,
    canonicalise.CANONICALISE_PASS,
    raw_inputs.FOLD_SCALES_PASS,
)
"""Passes that run first. If the network is compiled as a stream, the conversion to a step of the stream runs after
these passes."""

LOWERING = (
    loop_blocking.LOOP_BLOCKING_PASS,
    loop_blocking.SCAN_IN_PLACE_PASS,
    raw_inputs.FOLD_SHIFTS_PASS,
    legalize.LEGALIZE_PASS,
    fold_constants.FOLD_CONSTANTS_PASS,
    parallel_layers.PASS,
    canonicalise.CANONICALISE_PASS,
    scale_axis.PASS,
    channel_removal.CONSTANT_CHANNELS_PASS,
    channel_removal.DUPLICATE_CHANNELS_PASS,
    channel_removal.DEAD_CHANNELS_PASS,
    unary_functions.PASS,
    integer_ranges.PASS,
    layer_norm.LAYER_NORM_PASS,
    weight_types.WEIGHT_DTYPE_PASS,
    common_subexpressions.COMMON_SUBEXPRESSIONS_PASS,
    dead_code.DEAD_CODE_PASS,
    channels_last.NARROW_VIEWS_PASS,
    loop_blocking.PREWIDENED_WEIGHTS_PASS,
    fuse.PASS,
)
"""Passes that run after the conversion to a step of a stream, if there is one."""

PASSES = (*NORMALISING, *LOWERING)
"""All passes in order. A pass may occur more than once; disabling its name disables every occurrence."""
