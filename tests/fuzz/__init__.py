# SPDX-License-Identifier: Apache-2.0
"""Fuzzing of the whole compiler, of generated C, of the runtime and of the host's client: ``python -m tests.fuzz --help``."""
