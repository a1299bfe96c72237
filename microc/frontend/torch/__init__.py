"""PyTorch programs (``torch.export``), checked before PyTorch sees them."""
