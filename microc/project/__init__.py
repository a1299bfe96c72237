"""Floor 7: the pipeline and what users call."""
