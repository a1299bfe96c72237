"""Floor 4: schedule primitives, intrinsics as data, schedule rules."""
