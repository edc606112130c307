"""Portable kernels of other packages' own operators: a library per package, loaded where a program has one of them."""
