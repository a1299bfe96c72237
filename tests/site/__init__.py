# SPDX-License-Identifier: Apache-2.0
"""The documentation: the site builds, its links hold, its code runs, its reference is complete."""
