"""Runs programs on GPUs by WebGPU, through ONNX Runtime. Needs no torch."""
