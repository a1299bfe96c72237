# SPDX-License-Identifier: Apache-2.0
"""Print C: expressions, statements, kernels, and a network's sources and header."""
