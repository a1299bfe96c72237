# SPDX-License-Identifier: Apache-2.0
"""Compiled networks on this computer: shared libraries, OpenCL functions, the ONNX test suite."""
