"""ONNX models: the protobuf checked, operators converted to ours."""
