"""Normalisation of rows: L2 and layer norms, softmaxes."""
