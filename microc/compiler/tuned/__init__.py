# SPDX-License-Identifier: Apache-2.0
"""Measured schedules in a compilation: records, the kernels that they belong to, and the choice among them."""
