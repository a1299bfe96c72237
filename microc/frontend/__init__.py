"""Floor 4: readers of model files."""
