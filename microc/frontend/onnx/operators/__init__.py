# SPDX-License-Identifier: Apache-2.0
"""Converters of ONNX operators, by subject."""
