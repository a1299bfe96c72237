"""Functions of control flow."""
