"""Layers over time, and histories of streams."""
