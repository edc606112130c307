"""The forms of a user's model (modules, TorchScript, files, dicts), converted to ExportedPrograms by method name."""

from __future__ import annotations

import contextlib
import os
import re
import sysconfig
import traceback
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.common.files import open_to_read
from delegate.common.user_warnings import limit_logs
from delegate.edge.torch_private import TS2EPConverter, export_trace, pytree
from delegate.errors import ExportError
from delegate.plugins import first_line

_SAVED = "pass a .pt2 file that was written by torch.export.save of this version of torch"
_REGISTER = (
    "first import the module that registers them (pytree.register_pytree_node); on the command line with "
    "--import MODULE[:FUNCTION]"
)
_CLASS = re.compile(r'\\"type\\": \\"([^"\\]+)\\", \\"context\\"')  # in a structure, which is JSON within JSON
_EXPORT = "export it first: delegate.export(module.eval(), example_inputs)"


Exported = ExportedProgram | str | os.PathLike[str]
Model = Exported | Mapping[str, Exported] | torch.nn.Module


def export(module: torch.nn.Module | str | os.PathLike[str], inputs: tuple[Any, ...]) -> ExportedProgram:
    """Export a module in its present mode, with the sizes of its example inputs.

    For dynamic sizes, call `torch.export.export` with `dynamic_shapes`.

    Example::

        exported = delegate.export(model.eval(), (torch.zeros(1, 8),))
        program = delegate.to_backend(exported, "xnnpack")

    Args:
        module: an eager, traced or scripted module, or the path of a TorchScript file.
        inputs: example arguments, by position.

    Raises:
        ExportError: the object is not a module, the inputs are not a tuple, or torch cannot export the module.
    """
    return export_module(_module(module), inputs, _name(module))


def read_programs(model: Any) -> dict[str, ExportedProgram]:
    """Return the exported programs of a model, by method name.

    Args:
        model: an ExportedProgram, the path of a .pt2 file, or a dict of either by method name.

    Raises:
        ExportError: the model has none of these forms, or cannot be read.
    """
    if isinstance(model, Mapping):
        if not model:
            raise ExportError("the dict of methods is empty", remedy="pass at least one method")
        bad = next((name for name in model if not isinstance(name, str) or not name), None)
        if bad is not None:
            raise ExportError(f"{bad!r} is not a valid name of a method", remedy="use non-empty strings")
        return {name: _read_exported(part, name) for name, part in model.items()}
    return {"forward": _read_exported(model, "forward")}


def _module(model: Any) -> torch.nn.Module:
    """Return the module to export with example inputs."""
    if isinstance(model, torch.nn.Module):
        return model
    if isinstance(model, str | os.PathLike) and is_torchscript(_require_file(Path(model))):
        return _load_torchscript(Path(model))
    raise ExportError(
        f"a {type(model).__name__} is not a module and cannot be exported",
        remedy="pass a module or the path of a TorchScript file; to_backend accepts exported programs directly",
    )


def _name(model: Any) -> str:
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    return str(getattr(model, "original_name", type(model).__name__))


def _read_exported(model: Any, name: str) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, str | os.PathLike):
        return _load(_require_file(Path(model)))
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError(f"{_name(model)} is TorchScript and needs example inputs", remedy=_EXPORT)
    if isinstance(model, torch.nn.Module):
        raise ExportError(f"{type(model).__name__} is a module, not an exported program", remedy=_EXPORT)
    raise ExportError(
        f"a {type(model).__name__} is not a model",
        where=f"method {name}",
        remedy="pass an ExportedProgram, the path of a .pt2 file, or a dict of either by method name",
    )


def require_no_program(path: Path) -> None:
    """Raise ExportError for the name of a saved program, without reading the file: a model's file may run code."""
    if path.suffix.lower() == ".dlg":
        what = f"{path} is the name of a compiled program, not of a model"
        raise ExportError(what, remedy="pass the .pt2 file that it was lowered from")


def _require_file(path: Path) -> Path:
    require_no_program(path)
    if not os.path.isfile(path):
        raise ExportError(f"there is no file {path}", remedy="pass the path of a file that torch.export.save wrote")
    return path


def _load(path: Path) -> ExportedProgram:
    if is_torchscript(path):
        raise ExportError(f"{path} is TorchScript and needs example inputs", remedy=_EXPORT)
    if path.suffix != ".pt2":  # torch unpickles what is in it, and has no way to read it without
        what = f"{path} does not end in .pt2: no other file is opened as a model, because a model can run code"
        raise ExportError(what, remedy="rename it if you trust it")
    try:
        return torch.export.load(path)
    except Exception as error:
        what, remedy = f"torch cannot read {path}: {first_line(error)}", _SAVED
        if unknown := _find_unregistered(path):
            what = f"{path} has inputs or results of classes that are not registered: {', '.join(unknown)}"
            remedy = _REGISTER
        raise ExportError(what, remedy=remedy) from error


def _find_unregistered(path: Path) -> list[str]:
    """Return the classes of a program's inputs and results that are not registered with torch's pytree here."""
    with contextlib.suppress(OSError, ValueError, LookupError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        graphs = [name for name in archive.namelist() if "/models/" in name and name.endswith(".json")]
        named = {class_name for name in graphs for class_name in _CLASS.findall(archive.read(name).decode())}
        return sorted(named - pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.keys())
    return []


# They log errors that torch then raises with the same contents, and torch's assumptions on sizes.
_LOGGERS = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor", "torch._export.non_strict_utils")


def export_module(module: torch.nn.Module, inputs: Any, name: str) -> ExportedProgram:
    """Export a module as `export` does; `name` is its name in messages."""
    if not isinstance(inputs, tuple):
        raise ExportError(
            f"the example inputs of {name} are a {type(inputs).__name__}, not a tuple",
            remedy="pass a tuple of positional arguments, such as (x,) for one",
        )
    inputs = _without_repetitions(inputs)
    with limit_logs(*_LOGGERS, level="CRITICAL"), _without_printed_graphs():
        if isinstance(module, torch.jit.ScriptModule):
            return _convert_torchscript(module, inputs, name)
        try:
            return torch.export.export(module, inputs)
        except Exception as error:
            raise _export_refusal(error, name) from error


def _without_repetitions(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs with a copy of each repeated tensor: torch makes one input of a tensor that is passed twice."""
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        repeated = isinstance(leaf, torch.Tensor) and id(leaf) in seen
        seen.add(id(leaf))
        return leaf.clone() if repeated else leaf

    copied: tuple[Any, ...] = pytree.tree_map(own, inputs)
    return copied


@contextlib.contextmanager
def _without_printed_graphs() -> Iterator[None]:
    """Suppress the graph that torch prints on stderr, twice, before it raises an error."""
    vars(export_trace)["print"] = lambda *values, **options: None
    try:
        yield
    finally:
        del vars(export_trace)["print"]


_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))  # torch, and this project
_STANDARD = sysconfig.get_path("stdlib")
_PACKAGES = ("site-packages", "dist-packages")
_EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)  # of the compiler in torch
_HINT = re.compile(r"^\s*Hint: (?!Please|Consider using the debug|It may be)(.+)$", re.MULTILINE)
_ALL = "`--debug`, or the cause of this error, has all that torch reports"
_ON_DATA = "use torch.where or torch.cond in its place, or pass the value as an argument"


def _export_refusal(error: Exception, name: str) -> ExportError:
    """Return the error about a failure of torch.export.

    Args:
        error: torch's error, with its traceback.
        name: name of the module, for messages.
    """
    reason, remedy = _reason(error)
    return ExportError(f"torch.export failed on {name}: {reason}", where=_place(error), remedy=f"{remedy}; {_ALL}")


def _reason(error: Exception) -> tuple[str, str]:
    """Return the reason in short, and the remedy."""
    text = str(error)
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        return "the line depends on the content of a tensor, which is not known in an export", _ON_DATA
    if explanation := _EXPLANATION.search(text):
        hint = _HINT.search(text)
        return explanation[1].partition(". ")[0].rstrip("."), hint[1].rstrip(".") if hint else "change this line"
    return first_line(error).rstrip("."), "change this line, or the example inputs"


def _place(error: Exception) -> str:
    """Return the last line of the traceback that is neither torch's nor Python's; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_user(frame)]
    if not frames:
        return ""
    file, code = frames[-1].filename, f": `{frames[-1].line}`" if frames[-1].line else ""
    near = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return f"{near}:{frames[-1].lineno}, in {frames[-1].name}{code}"


def _is_of_user(frame: FrameSummary) -> bool:
    file = frame.filename
    is_standard = file.startswith(_STANDARD) and not any(f"/{name}/" in Path(file).as_posix() for name in _PACKAGES)
    return not (is_standard or file.startswith(_LIBRARIES) or file == "<string>" or "<frozen" in file)


_UNCONVERTED = re.compile(r"failed for node (\S+)")  # how the converter names an operator that it does not know,
_UNTRACED = re.compile(r"While executing .*?target=torch\.ops\.(\S+?)\]")  # and torch.export one that fails
_REMEDY = "rewrite that part of the model, or export the module from which the TorchScript was created"


def is_torchscript(path: Path) -> bool:
    """Return true if a file is of `torch.jit.save`, without loading it."""
    return any(name.startswith("code/") and name.endswith(".py") for name in list_archive(path) or ())


def list_archive(path: Path) -> list[str] | None:
    """Return the names in a file of torch without their folder; None if it is not an archive that can be read."""
    try:
        with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
            return [name.partition("/")[2] for name in archive.namelist()]
    except Exception:  # of zipfile, which raises what it likes
        return None


def _load_torchscript(path: Path) -> torch.jit.ScriptModule:
    """Return the module of a TorchScript file, on the CPU; raise ExportError if torch cannot read it."""
    try:
        with _without_deprecation_warnings():
            module: torch.jit.ScriptModule = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
            return module
    except Exception as error:
        what = f"torch cannot read {path}: {first_line(error)}"
        raise ExportError(what, remedy="save it again with this version of torch") from error


def _convert_torchscript(module: torch.jit.ScriptModule, inputs: tuple[Any, ...], name: str) -> ExportedProgram:
    """Return the exported program of a traced or scripted module, with the sizes of its example inputs.

    Args:
        module: the module, in its present mode.
        inputs: example arguments; the module runs on them.
        name: name of the module, for messages.

    Raises:
        ExportError: the module does not run on these inputs, or torch cannot convert an operator, which is named.
    """
    with _without_deprecation_warnings():
        spec = pytree.tree_structure(_run(module, inputs, name))
        try:
            converted = TS2EPConverter(module, inputs).convert()
            exported = torch.export.export(converted.module(), inputs)  # all sizes that may vary do in `converted`
        except Exception as error:
            raise _refusal(error, name) from error
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
        raise ExportError(what, remedy="pass example inputs that the module accepts") from error


def _refusal(error: Exception, name: str) -> ExportError:
    """Return the error of a conversion, with the operator if torch names it."""
    text = str(error)
    match = _UNCONVERTED.search(text) or _UNTRACED.search(text)
    where = match[1] if match else ""
    return ExportError(f"torch cannot convert {name}: {first_line(error)}", where=where, remedy=_REMEDY)


@contextlib.contextmanager
def _without_deprecation_warnings() -> Iterator[None]:
    """Suppress torch's warnings that TorchScript is deprecated, and those about its own converter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit")  # DeprecationWarning, FutureWarning from torch 2.14 on
        for ours in ("Manually populate", "Pred is a Python constant"):
            warnings.filterwarnings("ignore", message=ours, category=UserWarning)
        yield
