"""The tests. What they compile is compiled anew, but for those of the cache, which have one of their own."""

import os

os.environ["MICROC_CACHE"] = ""
