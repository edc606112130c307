"""A pluggable backend delegation framework for exported PyTorch models.

Example::

    exported = torch.export.export(model.eval(), example_inputs)
    program = delegate.to_backend(exported, "xnnpack")  # which backend runs what: print(program.report)
    program.save("model.dlg")

    program = delegate.load("model.dlg")  # on another machine, without torch
    result = program(image)  # NumPy arrays

Importing this package imports neither torch nor any vendor library: the public names are resolved when first used.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"

# How long the threads of NumPy's BLAS spin after a product, as a power of two of cycles. They read it when NumPy is
# imported. By default they spin for 20 ms, and take a core from the library whose partition comes next.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

# Type checkers read the names in the stub beside this file, so the stub is the one list of them.
with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as stub:
    _PUBLIC = {words[3]: words[1] for words in map(str.split, stub) if words[:1] == ["from"]}  # name -> module

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'delegate' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("torch", "pydantic", "yaml"):
            raise
        from delegate.errors import DelegateError

        raise DelegateError(
            f"delegate.{name} needs {missing}, which is not installed",
            remedy="pip install 'delegate[aot]'; running saved programs needs only delegate.load",
        ) from error


def __dir__() -> list[str]:
    return sorted((*_PUBLIC, "__version__"))
