"""Export of microc's graphs as ONNX models.

Tables map each operator of microc's graph to a row, the function that writes the operator as one or more ONNX operators.
"""
