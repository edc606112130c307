"""Delegates in a separate process, for untrusted program files; imported only on request.

The program's process (`process.py`) starts one that only runs delegates (`worker.py`). They exchange JSON and tensors
in shared memory (`channel.py`). Messages of the worker are never run or unpickled.
"""
