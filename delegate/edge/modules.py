"""Export of modules with example inputs: eager ones by torch.export, TorchScript by torch's converter."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.edge.torchscript import convert
from delegate.errors import ExportError
from delegate.plugins import first_line

# They log errors that torch then raises, and torch's assumptions on sizes.
_LOGGERS = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor", "torch._export.non_strict_utils")


def export_module(module: torch.nn.Module, inputs: Any, name: str) -> ExportedProgram:
    """Export a module in its present mode, with the sizes of its example inputs.

    Args:
        module: an eager module, or one that was traced or scripted.
        inputs: a tuple of example arguments.
        name: name of the module, for messages.

    Raises:
        ExportError: the inputs are no tuple, or torch cannot export the module.
    """
    if not isinstance(inputs, tuple):
        raise ExportError(
            f"the example inputs of {name} are a {type(inputs).__name__}, not a tuple",
            remedy="give a tuple of positional arguments, (x,) for one",
        )
    with _one_voice():
        if isinstance(module, torch.jit.ScriptModule):
            return convert(module, inputs, name)
        try:
            return torch.export.export(module, inputs)
        except Exception as error:
            what = f"torch.export failed on {name}: {first_line(error)}"
            raise ExportError(what, remedy="change what it names; the cause has torch's own words") from error


@contextlib.contextmanager
def _one_voice() -> Iterator[None]:
    """Suppress torch's log about an error that it then raises: the error has the same contents."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_chatter)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_chatter)


def _is_chatter(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING
