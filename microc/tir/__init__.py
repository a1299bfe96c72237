"""Floor 1: the loop IR (TIR), a stranger to the graph."""
