# SPDX-License-Identifier: Apache-2.0
"""Code of other machines, run here: cross compilers make programs that answer calls over pipes, emulators run them."""
