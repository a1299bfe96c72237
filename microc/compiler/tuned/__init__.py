"""Measured schedules in a compilation: records of them, the kernels that they are of, which of them are taken."""
