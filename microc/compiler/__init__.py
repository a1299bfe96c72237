# SPDX-License-Identifier: Apache-2.0
"""From a graph to a planned module."""
