"""Operators along axes: reductions, running sums, and searches for extreme elements."""
