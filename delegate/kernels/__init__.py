"""Portable kernels over NumPy, by family. Each is a row of a `KernelTable` with its operator, dtypes and kind.

These modules are not families: `table` defines rows, `selection` and `libraries` choose kernels at binding, `operands`
and `half_precision` convert arguments. `aten/` has the same operators on torch.
"""
