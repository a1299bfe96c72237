# SPDX-License-Identifier: Apache-2.0
"""Code generation: print C, and write projects, packages and other output files."""
