"""Pooling operators: reductions over sliding windows."""
