# SPDX-License-Identifier: Apache-2.0
"""Mistakes that people make, and whether what they are told helps."""
