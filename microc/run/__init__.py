"""Boards and references: run, time, compare."""
