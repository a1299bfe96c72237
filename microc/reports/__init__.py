# SPDX-License-Identifier: Apache-2.0
"""Reports: estimates, sizes, explanations, advice; as pages, pictures, tables and data."""
