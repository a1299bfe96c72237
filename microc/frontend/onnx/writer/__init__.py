# SPDX-License-Identifier: Apache-2.0
"""Export of microc's graphs as ONNX models.

Tables map each operator of microc's graph to the function that writes it as one or more ONNX operators."""
