# SPDX-License-Identifier: Apache-2.0
"""Signal processing: Fourier transforms, digital filters, and the feature extraction of speech frontends."""
