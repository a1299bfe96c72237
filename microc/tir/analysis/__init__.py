"""Analyses of loops: intervals, linear forms, simplification, coverage, order of accesses."""
