"""Floor 5: static memory planning."""
