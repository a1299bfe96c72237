# SPDX-License-Identifier: Apache-2.0
"""Passes on quantised networks: recognition of QDQ operators, legalisation to integer operators, value ranges, lookup
tables, types of weights."""
