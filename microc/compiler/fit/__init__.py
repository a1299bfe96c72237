"""Fit a network to the flash and RAM of a board."""
