# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers, and operators that keep the history of a stream."""
