"""Fixed-point arithmetic between scales."""
