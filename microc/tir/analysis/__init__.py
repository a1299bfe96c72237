"""Analyses of TIR: intervals, linear forms, simplification, coverage of block domains, order of memory accesses."""
