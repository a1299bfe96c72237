# SPDX-License-Identifier: Apache-2.0
"""Quantised arithmetic: integers are scaled by fixed-point or float multipliers from the scales of operands to that of
the result."""
