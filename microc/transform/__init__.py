"""Floor 4: graph passes."""
PASSES=()
