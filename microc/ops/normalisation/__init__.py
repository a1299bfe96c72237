"""Rows scaled by what is found in them: norms and softmaxes."""
