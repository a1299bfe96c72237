# SPDX-License-Identifier: Apache-2.0
"""Normalisation of rows: L2 and layer norms, softmaxes."""
