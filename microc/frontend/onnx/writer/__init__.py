"""Graphs of ours as ONNX models: tables of rows by operator, each of which writes one operator of ours in ONNX's."""
