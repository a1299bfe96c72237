"""Schedule primitives, a file for each family of steps."""
