"""The ATen kernel library: torch's own kernels, for machines with torch. It is imported only on request.

It runs the same kernels as eager, including custom operators that are registered in this process. Program files choose
operators by name, and torch does not check all arguments of its internal operators: use it only for trusted files.
"""
