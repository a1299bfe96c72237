# SPDX-License-Identifier: Apache-2.0
"""The graph IR: a network as operators (nodes) and named values. Nodes are immutable; a pass maps a graph to a new graph."""
