"""Operator ``tree_ensemble``: ensembles of decision trees."""
