# SPDX-License-Identifier: Apache-2.0
"""Tests of ONNX models that are written."""
