"""Schedule primitives, intrinsics as data, schedule rules."""
