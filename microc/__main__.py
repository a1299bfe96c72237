# SPDX-License-Identifier: Apache-2.0
"""``python -m microc``."""

from microc.cli import run_process

run_process()
