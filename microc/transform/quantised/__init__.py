"""Quantised."""
