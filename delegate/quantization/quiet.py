"""Imports torchao without its talk: which of its libraries for GPUs do not load is of no matter here."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_TALKERS = ("torchao", "torch.utils._pytree")  # the second tells torchao of what is deprecated in torch


@contextmanager
def _silent(names: tuple[str, ...]) -> Iterator[None]:
    """Have these loggers pass errors alone."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


with _silent(_TALKERS):
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401
