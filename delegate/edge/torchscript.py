"""TorchScript, traced or scripted: read from a file, and converted to an exported program."""

from __future__ import annotations

import contextlib
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._export.converter import TS2EPConverter
from torch.export import ExportedProgram

from delegate.errors import ExportError
from delegate.plugins import first_line

_UNCONVERTED = re.compile(r"failed for node (\S+)")  # how the converter names an operator that it does not know,
_UNTRACED = re.compile(r"While executing .*?target=torch\.ops\.(\S+?)\]")  # and torch.export one that fails
_REMEDY = "write that part otherwise, or export the module that the TorchScript was made of"


def is_torchscript(path: Path) -> bool:
    """Return true if a file is of `torch.jit.save`, without loading it."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
    return any(name.startswith("code/") and name.endswith(".py") for name in names)


def load(path: Path) -> torch.jit.ScriptModule:
    """Return the module of a TorchScript file, on the CPU; raise ExportError if torch cannot read it."""
    try:
        with _no_farewell():
            module: torch.jit.ScriptModule = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
            return module
    except Exception as error:
        what = f"torch cannot read {path}: {first_line(error)}"
        raise ExportError(what, remedy="save it again with this version of torch") from error


def convert(module: torch.jit.ScriptModule, inputs: tuple[Any, ...], name: str) -> ExportedProgram:
    """Return the exported program of a traced or scripted module, with the sizes of its example inputs.

    Args:
        module: the module, in its present mode.
        inputs: example arguments; the module runs on them.
        name: name of the module, for messages.

    Raises:
        ExportError: the module does not run on these inputs, or torch cannot convert an operator, which is named.
    """
    with _no_farewell():
        spec = pytree.tree_structure(_run(module, inputs, name))
        converted = _converted(module, inputs, name)
        try:
            exported = torch.export.export(converted.module(), inputs)  # all sizes that may vary do in `converted`
        except Exception as error:
            raise _refusal(error, name, None) from error
    # The converter gives its own containers: lists for tuples, immutable dicts for dicts.
    signature = exported.module_call_graph[0].signature
    assert signature is not None
    assert signature.out_spec.num_leaves == spec.num_leaves
    signature.out_spec = spec
    return exported


def _run(module: torch.jit.ScriptModule, inputs: tuple[Any, ...], name: str) -> Any:
    """Return the module's result; its buffers do not change."""
    buffers = list(module.buffers())
    values = [buffer.clone() for buffer in buffers]
    try:
        with torch.no_grad():
            result = module(*inputs)
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
            return result
    except Exception as error:
        words = [line for line in str(error).splitlines() if line.strip()]
        what = f"{name} does not run on its example inputs: {words[-1] if words else type(error).__name__}"
        raise ExportError(what, remedy="give inputs that it takes") from error


def _converted(module: torch.jit.ScriptModule, inputs: tuple[Any, ...], name: str) -> ExportedProgram:
    converter = None
    try:
        converter = TS2EPConverter(module, inputs)
        return converter.convert()
    except Exception as error:
        raise _refusal(error, name, converter) from error


def _refusal(error: Exception, name: str, converter: TS2EPConverter | None) -> ExportError:
    """Return the error of a conversion: with the operator, and its source lines if TorchScript has them."""
    text = str(error)
    if converter is not None and (match := _UNCONVERTED.search(text)):
        lines = ", ".join(_lines(converter, match[1]))
        return ExportError(f"torch cannot convert {match[1]} of {name}", where=lines, remedy=_REMEDY)
    match = _UNTRACED.search(text)
    where = match[1] if match else ""
    return ExportError(f"torch cannot convert {name}: {first_line(error)}", where=where, remedy=_REMEDY)


def _lines(converter: TS2EPConverter, kind: str) -> list[str]:
    """Return the source lines of the nodes of a kind, e.g. "model.py, line 12"."""
    graph: Any = converter.ts_graph
    ranges = (node.sourceRange() for node in graph.findAllNodes(kind))
    matches = (re.search(r'File "(.*?)", line (\d+)', text) for text in ranges)
    return list(dict.fromkeys(f"{Path(m[1]).name}, line {m[2]}" for m in matches if m))


@contextlib.contextmanager
def _no_farewell() -> Iterator[None]:
    """Suppress torch's warnings that TorchScript is deprecated, and those about its own converter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        for ours in ("Manually populate", "Pred is a Python constant"):
            warnings.filterwarnings("ignore", message=ours, category=UserWarning)
        yield
