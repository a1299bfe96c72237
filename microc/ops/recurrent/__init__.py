"""Layers over time, and what streams keep of their past."""
