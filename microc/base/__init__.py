"""Foundations of every room: dtypes, immutable classes, bounded files, terminal text."""
