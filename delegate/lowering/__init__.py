"""Lowering of programs: the compiler, and quantization, placement, locks and the program cache around it."""
