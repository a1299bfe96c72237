"""Mistakes that people make, and whether what they are told helps."""
