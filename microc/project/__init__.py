# SPDX-License-Identifier: Apache-2.0
"""Project folders: ``microc.toml``, new projects, and checks of models, plugins and installed tools."""
