# SPDX-License-Identifier: Apache-2.0
"""Training as a rewriting of graphs: losses, gradients, and the step of an optimiser."""
