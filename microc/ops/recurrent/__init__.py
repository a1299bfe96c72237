"""Recurrent layers, and operators that keep the history of a stream."""
