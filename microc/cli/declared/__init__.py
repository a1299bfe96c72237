"""The declarations of all commands and their arguments."""
