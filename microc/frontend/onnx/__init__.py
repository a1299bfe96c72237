# SPDX-License-Identifier: Apache-2.0
"""Reader and writer of ONNX models."""
