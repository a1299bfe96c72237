"""Tests of ONNX models that are written."""
