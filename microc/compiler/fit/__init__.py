# SPDX-License-Identifier: Apache-2.0
"""Fit a network to the flash and RAM of a board."""
