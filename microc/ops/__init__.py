"""Operators. One file per family says everything about what its operators compute."""
