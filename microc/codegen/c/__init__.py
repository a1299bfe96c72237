"""Print C: expressions, statements, kernels, and a network's sources and header."""
