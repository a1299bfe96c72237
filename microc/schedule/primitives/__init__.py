# SPDX-License-Identifier: Apache-2.0
"""Schedule primitives: functions that change the loops, blocks and buffers of a TIR function, one file for each
family."""
