"""Models of one operator with extreme, random and degenerate numbers, against TFLite Micro or ONNX Runtime, under sanitizers."""
