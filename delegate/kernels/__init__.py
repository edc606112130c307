"""Portable kernels over NumPy, by family. Each is a row of a `KernelTable` with its operator, dtypes and kind."""
