# SPDX-License-Identifier: Apache-2.0
"""``python -m microc``."""

import sys

from microc.cli import main

sys.exit(main())
