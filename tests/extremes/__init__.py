# SPDX-License-Identifier: Apache-2.0
"""Models of one operator with extreme, random and degenerate numbers, against TFLite Micro or ONNX Runtime, under sanitizers."""
