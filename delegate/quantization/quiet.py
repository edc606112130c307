"""Import torchao without its messages about GPU libraries that do not load: nothing here uses these libraries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = ("torchao", "torch.utils._pytree")  # the second warns torchao of deprecations in torch


@contextmanager
def silence() -> Iterator[None]:
    """Limit the loggers that such imports use to errors."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


with silence():
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401
