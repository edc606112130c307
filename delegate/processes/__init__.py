"""Separate processes that answer questions: probes of plugins, compilers, isolated delegates, measurements.

A process is a new Python, never a fork, because a fork waits for ever for the threads of vendor libraries.

- `process.Process` starts it, asks, and limits the time of an answer. `ProcessEnded` is the one error if there is none.
- `answering.serve` is what the process runs: a table of questions, which is all that a use of processes defines.
- `channel` has the form of messages: JSON behind its length, and files by descriptor. Nothing is pickled.
- `lifeline` ends the process with its parent.
- `limits` has the times, which leave out those in which a process waits for a core.
- `probing` asks plugins, in whose processes a crash or a hang harms nobody.

The other tables are `runtime.isolated`, `backend.compiler_worker`, `placement.runtime.worker` and `calibration`.
"""
