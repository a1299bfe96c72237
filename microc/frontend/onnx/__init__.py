"""Reader and writer of ONNX models."""
