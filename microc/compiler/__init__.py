"""From a graph to a planned module."""
