"""``python -m microc``."""

import sys

from microc.cli import main

sys.exit(main())
