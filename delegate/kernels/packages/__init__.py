"""Portable kernels of other packages' operators, one library per package, loaded only for programs that need it."""
