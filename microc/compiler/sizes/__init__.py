# SPDX-License-Identifier: Apache-2.0
"""Networks with dynamic sizes: one function for all sizes, lowered once."""
