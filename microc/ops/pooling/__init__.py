"""Pools and windows."""
