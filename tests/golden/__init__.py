# SPDX-License-Identifier: Apache-2.0
"""Golden texts: what passes, schedule steps, lowering and printing make of small inputs, one file each, reviewed as diffs.

``python -m tests.golden --write`` rewrites all that differ; ``tests/golden/test_golden.py`` checks them.
"""
