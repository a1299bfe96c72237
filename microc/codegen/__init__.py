"""C printing and project writing."""
