# SPDX-License-Identifier: Apache-2.0
"""HTML pages: their blocks, their pictures, and the page of a report."""
