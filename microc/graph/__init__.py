"""The graph IR. Values are names, nodes are immutable, a pass is Graph -> Graph."""
