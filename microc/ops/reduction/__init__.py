"""Reductions, running sums and searches along axes."""
