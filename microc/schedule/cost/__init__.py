"""Cost of a function without running it: instructions, memory traffic, registers."""
