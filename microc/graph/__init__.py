"""Floor 1: the graph IR. Values are names, nodes are immutable, a pass is Graph -> Graph."""
