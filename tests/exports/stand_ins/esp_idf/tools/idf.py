#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for idf.py: `-B FOLDER -DIDF_TARGET=CHIP build` in a project's folder."""

import subprocess
import sys

option, folder, target, action = sys.argv[1:]
assert (option, action) == ("-B", "build") and target.startswith("-DIDF_TARGET=")
subprocess.run(["cmake", "-B", folder, target], check=True)
subprocess.run(["cmake", "--build", folder], check=True)
