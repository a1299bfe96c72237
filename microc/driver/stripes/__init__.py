"""Layers that work row by row, so that an arena keeps to its limit (``--ram``)."""
