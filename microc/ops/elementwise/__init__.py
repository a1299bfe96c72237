# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators with one operand, or with two that broadcast, and their scalar functions."""
