"""Convolutions and their adjoints."""
