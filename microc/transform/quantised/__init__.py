"""Passes on quantised networks: QDQ to integers, legalisation, ranges, tables, weight types."""
