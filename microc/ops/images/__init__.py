"""Reading between pixels; boxes."""
