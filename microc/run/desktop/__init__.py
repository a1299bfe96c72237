"""Compiled networks on this computer: shared libraries, OpenCL functions, the ONNX test suite."""
