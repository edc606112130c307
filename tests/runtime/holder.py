"""A plugin whose import never ends and holds Python's lock all the time, as a library that hangs in C may."""

import ctypes

ctypes.PyDLL(None).sleep(300)
