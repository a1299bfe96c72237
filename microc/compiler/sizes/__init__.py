"""Networks with dynamic sizes: one function for all sizes, generalised from several."""
