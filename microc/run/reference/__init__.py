# SPDX-License-Identifier: Apache-2.0
"""Reference frameworks: run a model in the framework that made it, and compare it with the compiled network."""
