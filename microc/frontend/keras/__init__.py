"""Keras 3 models (``.keras``), read without Keras."""
