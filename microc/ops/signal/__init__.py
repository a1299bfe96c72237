"""Signal processing: Fourier transforms, digital filters, and the feature extraction of speech frontends."""
