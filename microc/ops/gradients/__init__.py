# SPDX-License-Identifier: Apache-2.0
"""Gradient rules of the operators: the derivative of a loss by operands, from its derivative by results."""
