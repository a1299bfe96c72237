# SPDX-License-Identifier: Apache-2.0
"""The declarations of all commands and their arguments."""
