"""Portable kernels, by family, over NumPy. A row in a `KernelTable` names operator, dtypes and kind of each."""
