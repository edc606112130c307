"""Values that no entry of a cache can have, and changes of entries to them."""

from __future__ import annotations

import math

NONSENSE = (None, True, -1, 0, 1e400, math.nan, 10**400, "", "text", [], [1], [[]], {}, {"a": 1}, {"a": []}, [None])


def changed(value, rng):
    """Return the value with something in it gone, doubled, or replaced by nonsense."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name, how = rng.choice(sorted(value)), rng.random()
        if how < 0.1:
            return {other: value[other] for other in value if other != name}
        return {**value, name: changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at, how = rng.randrange(len(value)), rng.random()
        return [*value[:at], *([] if how < 0.1 else [changed(value[at], rng)]), *value[at + (how < 0.9) :]]
    return rng.choice(NONSENSE)
