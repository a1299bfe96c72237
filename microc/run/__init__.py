# SPDX-License-Identifier: Apache-2.0
"""Run networks: on boards, on this computer, in reference frameworks; measure, compare, evaluate."""
