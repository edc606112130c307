"""Kernels of delegate in loops that Numba compiles for this CPU."""
