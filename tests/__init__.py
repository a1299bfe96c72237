# SPDX-License-Identifier: Apache-2.0
"""The tests. What they compile is compiled anew, but for those of the cache, which have one of their own.

Libraries that are held against microc compute in one thread: the run has a worker for each core, and threads of both wait for
each other in a loop.
"""

import os

os.environ["MICROC_CACHE"] = ""
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
