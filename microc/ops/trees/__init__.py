# SPDX-License-Identifier: Apache-2.0
"""Operator ``tree_ensemble``: ensembles of decision trees."""
