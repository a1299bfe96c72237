"""Fourier transforms and the frontends of speech."""
