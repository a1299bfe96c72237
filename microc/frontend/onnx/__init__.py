"""ONNX models: the protobuf checked, operators spelled in ours."""
