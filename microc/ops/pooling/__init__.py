# SPDX-License-Identifier: Apache-2.0
"""Pooling operators: reductions over sliding windows."""
