"""Models of one operator with extreme, random and degenerate numbers, against TFLite Micro and under sanitizers."""
