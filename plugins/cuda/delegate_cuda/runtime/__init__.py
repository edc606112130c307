"""Runs what TVM compiled on NVIDIA's GPUs. Needs no torch."""
