"""ATen mode: the kernel table over torch's own kernels, for where torch is installed. Never imported unless asked for.

It runs what eager runs, custom operators that are registered in this process included. Program files choose operators
by name, and torch does not check all arguments of its internal ones: use it for files that you trust.
"""
