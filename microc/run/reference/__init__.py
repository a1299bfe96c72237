"""The framework that made a model, run beside the compiled network: one file for each, and the comparison of the two."""
