# SPDX-License-Identifier: Apache-2.0
"""Operators along axes: reductions, running sums, and searches for extreme elements."""
