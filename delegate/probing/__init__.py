"""Questions to plugins, each in a separate process with a time limit, and a cache of the answers on disk.

A plugin is foreign code that imports its vendor's library: it may crash or hang. So a plugin that the user did not name
runs in a separate process (`process.py`, `worker.py`). Its answer is cached (`cache/runtime/probes.py`) until something
that it may depend on changes.
"""
