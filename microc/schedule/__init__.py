# SPDX-License-Identifier: Apache-2.0
"""Schedules of loop nests: schedule primitives, meanings of intrinsics, schedule rules, and the cost model that
chooses."""
