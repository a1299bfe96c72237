"""Operators on one element, or on two that broadcast, and their functions."""
