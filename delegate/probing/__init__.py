"""Questions to plugins, put in a process of their own with a time limit, and the answers kept on disk.

A plugin is code of somebody else that imports its vendor's library: it may crash or hang. So one that nobody asked for
by name is asked elsewhere (`process.py`, `worker.py`), and what it said is kept (`kept.py`) until something changes
that it may depend on.
"""
