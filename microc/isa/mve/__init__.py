# SPDX-License-Identifier: Apache-2.0
"""The vector extension of Cortex-M: vectors of lanes, matrix products, requantisation. Each file holds bodies of intrinsics."""
