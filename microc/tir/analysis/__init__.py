# SPDX-License-Identifier: Apache-2.0
"""Analyses of TIR: intervals, linear forms, simplification, coverage of block domains, order of memory accesses."""
