"""The inputs of a run: arrays from .npy and .npz files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from delegate.errors import InputError, ProgramError, did_you_mean
from delegate.program.model import MethodDefinition
from delegate.runtime.arguments import free_inputs, load_arrays
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.method import Method

Array = np.ndarray[Any, np.dtype[Any]]


def input_names(method: MethodDefinition) -> list[str]:
    """Return the names of the inputs that the caller chooses, in order."""
    return [method.inputs[i].name for i in free_inputs(method)]


def chosen_method(program: LoadedProgram, name: str | None, where: str = "") -> Method:
    """Return the method of `--method`, else the method of a plain call.

    Args:
        program: the program.
        name: the value of `--method`, if any.
        where: the file of the program, for messages.

    Raises:
        InputError: the program has several methods, and none is named or "forward".
        ProgramError: the program has no method of that name.
    """
    if name is None and program.default_method not in program.methods:
        what = f"no method {program.default_method!r} in this program; known: {', '.join(program.methods)}"
        raise InputError(what, where=where, remedy=f"name one of them, as --method {program.methods[0]}")
    try:
        return program.method(name or program.default_method)
    except ProgramError as error:
        raise error.at(where) from None


def read_inputs(method: str, names: Sequence[str], arguments: Sequence[str]) -> dict[str, Array]:
    """Read the arrays by input name, of arguments "a.npy" (in the order of the inputs), "name=a.npy" and "all.npz".

    Args:
        method: name of the method, for messages.
        names: names of its inputs, in order.
        arguments: the arguments.

    Raises:
        InputError: a file cannot be read, a name is unknown or given twice, or there are too many or too few.
    """
    if len(arguments) == 1 and arguments[0].endswith(".npz"):
        return read_archive(method, names, arguments[0])
    files: dict[str, str] = {}
    in_order: list[str] = []
    for text in arguments:
        name, separator, path = text.partition("=")
        if separator and (name in names or not os.path.exists(text)):
            if name not in names:
                raise InputError(f"method {method} has no input {name!r}", remedy=did_you_mean(name, names))
            if name in files:
                raise InputError(f"input {name!r} is given twice")
            files[name] = path
        else:
            in_order.append(text)
    free = [n for n in names if n not in files]
    if len(in_order) != len(free):
        problem = f"inputs without a file: {', '.join(free[len(in_order) :])}"
        if len(in_order) > len(free):
            problem = f"{len(in_order)} files in order, but {len(free)} inputs are left"
        raise InputError(problem, where=f"method {method}", remedy=f"it takes {', '.join(names) or 'no tensors'}")
    files.update(zip(free, in_order, strict=True))
    return {name: read_array(name, files[name]) for name in names}


def read_archive(method: str, names: Sequence[str], path: str) -> dict[str, Array]:
    """Read a .npz file whose arrays have the inputs' names, or the default names arr_0, arr_1, ... in order.

    Raises:
        InputError: the file cannot be read, or holds other arrays.
    """
    arrays = _load(path, repr(path), "numpy.savez")
    if not isinstance(arrays, dict):
        raise InputError(f"{path!r} holds one array, as a .npy file does", remedy="give a file that numpy.savez wrote")
    if list(arrays) == [f"arr_{i}" for i in range(len(names))]:
        arrays = dict(zip(names, arrays.values(), strict=True))
    if set(arrays) != set(names):
        what = f"{path!r} holds {', '.join(arrays) or 'nothing'}"
        raise InputError(what, where=f"method {method}", remedy=f"it takes {', '.join(names) or 'no tensors'}")
    return {name: arrays[name] for name in names}


def read_array(name: str, path: str) -> Array:
    """Read the .npy file of an input; raises InputError if it cannot be read."""
    subject = f"{path!r} for input {name!r}"
    loaded = _load(path, subject, "numpy.save")
    if isinstance(loaded, dict):
        raise InputError(f"{subject} holds several arrays", remedy="give a file that numpy.save wrote")
    return loaded


def _load(path: str, subject: str, writer: str) -> Array | dict[str, Array]:
    """Return what a file holds; raises InputError, which names the subject, if it cannot be read."""
    try:
        return load_arrays(path)
    except FileNotFoundError:
        raise InputError(f"there is no file {subject}", remedy="check the path") from None
    except (OSError, ValueError) as error:
        what = f"{subject} cannot be read: {' '.join(str(error).split())}"
        raise InputError(what, remedy=f"give a file that {writer} wrote") from error
