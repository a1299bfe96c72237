# SPDX-License-Identifier: Apache-2.0
"""The cost model, which estimates a function's instructions, memory traffic and registers without running it."""
