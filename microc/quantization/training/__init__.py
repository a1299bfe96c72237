"""Training of quantised networks in PyTorch, which nothing else of microc needs."""
