"""Image operators: interpolation between pixels, crops and non-maximum suppression of boxes."""
