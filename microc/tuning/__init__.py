# SPDX-License-Identifier: Apache-2.0
"""Tuning: spaces of schedules, a search, measurements on a board, records of them (docs/tuning.md)."""
