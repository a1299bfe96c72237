"""Regions of a network that external code computes.

``backend`` defines backends, ``partition`` finds their regions and makes kernels of their C; each bundled backend has
its own file or folder.
"""
