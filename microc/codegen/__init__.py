"""Floor 5: C printing and project writing."""
