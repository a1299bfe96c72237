# SPDX-License-Identifier: Apache-2.0
"""Boards and the ways to reach them: board files, toolchains, emulators, flashing, serial protocol."""
