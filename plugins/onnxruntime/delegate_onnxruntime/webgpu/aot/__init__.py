"""Lowering of regions for GPUs by WebGPU. Needs torch."""
