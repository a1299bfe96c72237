# SPDX-License-Identifier: Apache-2.0
"""Reader of Keras models (``.keras`` archives and HDF5 files). It does not import Keras."""
