"""Kernels of delegate for operators that few models have."""
