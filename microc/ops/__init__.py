# SPDX-License-Identifier: Apache-2.0
"""Operators of the graph, with one module for each family. The module defines everything about its operators: types of
results, numpy reference, loops, test cases."""
