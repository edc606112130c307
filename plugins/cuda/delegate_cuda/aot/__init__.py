"""Compilation of regions for NVIDIA's GPUs by TVM. Needs torch."""
