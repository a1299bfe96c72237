"""Networks on this computer: shared libraries and their callers."""
