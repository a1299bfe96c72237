"""Converters of ONNX operators, by subject."""
