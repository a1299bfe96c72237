# SPDX-License-Identifier: Apache-2.0
"""Regions of a network that external code computes.

``backend`` defines what a backend (an external library) declares. ``partition`` finds the regions that backends accept,
and makes kernels of their C code. Each bundled backend has its own file or folder.
"""
