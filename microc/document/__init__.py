# SPDX-License-Identifier: Apache-2.0
"""Documents: what commands, reports and objects show, and the forms in which it is shown."""
