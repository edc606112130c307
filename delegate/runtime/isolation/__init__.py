"""Delegates in a process of their own, for program files from strangers; imported only where that is asked for.

The program's process (`process.py`) starts one that does nothing but run delegates (`worker.py`). What passes between
them (`channel.py`) is JSON and tensors in shared memory: nothing that the worker says is ever run or unpickled.
"""
