"""Training as a rewriting of graphs: losses, gradients, and the step of an optimiser."""
