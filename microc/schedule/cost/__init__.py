"""The cost model, which estimates a function's instructions, memory traffic and registers without running it."""
