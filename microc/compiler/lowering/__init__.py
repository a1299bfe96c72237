# SPDX-License-Identifier: Apache-2.0
"""Lowering of a graph to a module: kernels chosen and built, control flow, external layers."""
