# SPDX-License-Identifier: Apache-2.0
"""Operators that move elements and compute nothing."""
