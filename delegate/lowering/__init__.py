"""Lowering of a plan: the compiler of a program, and the quantization before it."""
