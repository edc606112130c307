"""Language models of transformers: `export` writes one to a program file, `Model` generates text with that file.

Running needs neither torch nor transformers. `delegate --help` needs no name of this package, so each is imported when
it is first used.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# Type checkers read the names in the stub beside this file, so the stub is the one list of them.
with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as stub:
    _PUBLIC = {words[3]: words[1] for words in map(str.split, stub) if words[:1] == ["from"]}  # name -> module

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
