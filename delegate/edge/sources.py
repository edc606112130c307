"""The forms in which a user hands over a model, as ExportedPrograms by method name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.errors import ExportError


def exported_programs(model: Any) -> dict[str, ExportedProgram]:
    """Method name -> ExportedProgram.

    Args:
        model: an ExportedProgram, the path of a .pt2 file, or a dict of either by method name.

    Raises:
        ExportError: it is none of these, or the file cannot be read; says how to get there.
    """
    if isinstance(model, Mapping):
        if not model:
            raise ExportError("the dict of methods is empty", remedy="give at least one method")
        bad = next((name for name in model if not isinstance(name, str) or not name), None)
        if bad is not None:
            raise ExportError(f"{bad!r} is no name of a method", remedy="give non-empty strings")
        return {name: _exported_program(part, name) for name, part in model.items()}
    return {"forward": _exported_program(model, "forward")}


def _exported_program(model: Any, name: str) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, str | os.PathLike):
        return _load(Path(model))
    export = "export it first: torch.export.export(module.eval(), example_inputs)"
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError("TorchScript modules are not taken", where=f"method {name}", remedy=export)
    if isinstance(model, torch.nn.Module):
        raise ExportError(f"{type(model).__name__} is a module, not an exported program", remedy=export)
    raise ExportError(
        f"a {type(model).__name__} is no model",
        where=f"method {name}",
        remedy="give an ExportedProgram, the path of a .pt2 file, or a dict of them by method name",
    )


def _load(path: Path) -> ExportedProgram:
    if not path.is_file():
        raise ExportError(f"there is no file {path}", remedy="give the path that torch.export.save wrote")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ExportError(
            f"torch cannot read {path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            remedy="give a .pt2 file that torch.export.save wrote with this version of torch",
        ) from error
