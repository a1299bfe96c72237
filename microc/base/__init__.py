# SPDX-License-Identifier: Apache-2.0
"""Foundations that all packages use: dtypes, immutable classes, bounded reading of files, escaping of terminal text."""
