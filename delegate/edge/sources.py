"""The forms of a user's model, converted to ExportedPrograms by method name."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from delegate.edge import torchscript
from delegate.edge.modules import export_module
from delegate.errors import ExportError
from delegate.plugins import first_line

_SAVED = "give a .pt2 file that torch.export.save wrote with this version of torch"
_REGISTER = (
    "import what registers them (torch.utils._pytree.register_pytree_node) first, on the command line by "
    "--import MODULE[:FUNCTION]"
)
_CLASS = re.compile(r'\\"type\\": \\"([^"\\]+)\\", \\"context\\"')  # in a structure, which is JSON within JSON
_EXPORT = "export it first: delegate.export(module.eval(), example_inputs)"


Exported = ExportedProgram | str | os.PathLike[str]
Model = Exported | Mapping[str, Exported] | torch.nn.Module


def export(module: torch.nn.Module | str | os.PathLike[str], inputs: tuple[Any, ...]) -> ExportedProgram:
    """Export a module in its present mode, with the sizes of its example inputs.

    For dynamic sizes, call `torch.export.export` with `dynamic_shapes`.

    Args:
        module: an eager, traced or scripted module, or the path of a TorchScript file.
        inputs: example arguments, by position.

    Raises:
        ExportError: the object is no module, the inputs are no tuple, or torch cannot export the module.
    """
    return export_module(_module(module), inputs, _name(module))


def exported_programs(model: Any) -> dict[str, ExportedProgram]:
    """Return the exported programs of a model, by method name.

    Args:
        model: an ExportedProgram, the path of a .pt2 file, or a dict of either by method name.

    Raises:
        ExportError: the model has none of these forms, or cannot be read.
    """
    if isinstance(model, Mapping):
        if not model:
            raise ExportError("the dict of methods is empty", remedy="give at least one method")
        bad = next((name for name in model if not isinstance(name, str) or not name), None)
        if bad is not None:
            raise ExportError(f"{bad!r} is no name of a method", remedy="give non-empty strings")
        return {name: _exported_program(part, name) for name, part in model.items()}
    return {"forward": _exported_program(model, "forward")}


def _module(model: Any) -> torch.nn.Module:
    """Return the module to export with example inputs."""
    if isinstance(model, torch.nn.Module):
        return model
    if isinstance(model, str | os.PathLike) and torchscript.is_torchscript(_existing(Path(model))):
        return torchscript.load(Path(model))
    raise ExportError(
        f"a {type(model).__name__} is no module to export",
        remedy="give a module or the path of a TorchScript file; to_backend takes exported programs as they are",
    )


def _name(model: Any) -> str:
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    return str(getattr(model, "original_name", type(model).__name__))


def _exported_program(model: Any, name: str) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, str | os.PathLike):
        return _load(_existing(Path(model)))
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError(f"{_name(model)} is TorchScript and needs example inputs", remedy=_EXPORT)
    if isinstance(model, torch.nn.Module):
        raise ExportError(f"{type(model).__name__} is a module, not an exported program", remedy=_EXPORT)
    raise ExportError(
        f"a {type(model).__name__} is no model",
        where=f"method {name}",
        remedy="give an ExportedProgram, the path of a .pt2 file, or a dict of them by method name",
    )


def require_no_program(path: Path) -> None:
    """Raise ExportError for the name of a saved program, without reading the file: a model's file may run code."""
    if path.suffix.lower() == ".dlg":
        what = f"{path} has the name of a saved program, which is no model"
        raise ExportError(what, remedy="give the .pt2 file that it was lowered from")


def _existing(path: Path) -> Path:
    require_no_program(path)
    if not path.is_file():
        raise ExportError(f"there is no file {path}", remedy="give the path that torch.export.save wrote")
    return path


def _load(path: Path) -> ExportedProgram:
    if torchscript.is_torchscript(path):
        raise ExportError(f"{path} is TorchScript and needs example inputs", remedy=_EXPORT)
    if path.suffix.lower() != ".pt2":  # torch unpickles what is in it, and has no way to read it without
        what = f"{path} is opened as a model only under a name that ends in .pt2, since a model is code"
        raise ExportError(what, remedy="rename it if you trust it")
    try:
        return torch.export.load(path)
    except Exception as error:
        what, remedy = f"torch cannot read {path}: {first_line(error)}", _SAVED
        if unknown := _unregistered(path):
            what = f"{path} has inputs or results of classes that are not registered here: {', '.join(unknown)}"
            remedy = _REGISTER
        raise ExportError(what, remedy=remedy) from error


def _unregistered(path: Path) -> list[str]:
    """Return the classes of a program's inputs and results that are not registered with torch's pytree here."""
    with suppress(OSError, ValueError, LookupError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        graphs = [name for name in archive.namelist() if "/models/" in name and name.endswith(".json")]
        named = {class_name for name in graphs for class_name in _CLASS.findall(archive.read(name).decode())}
        return sorted(named - pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.keys())
    return []
