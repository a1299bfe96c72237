"""Keras models (``.keras``, HDF5), read without Keras."""
