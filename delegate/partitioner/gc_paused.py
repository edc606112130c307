"""Work on large graphs without the cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic collector, which would walk the whole graph repeatedly as new objects accumulate.

    It took two fifths of the time to plan 100,000 nodes. It would free nothing, since all new objects stay in use.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
