# SPDX-License-Identifier: Apache-2.0
"""Image operators: interpolation between pixels, crops and non-maximum suppression of boxes."""
