"""Arguments of a call, without torch: their names and flat leaves, nested results, random inputs, and arrays of files.

Arrays come from untrusted .npy and .npz files: nothing is unpickled, and there are two kinds of errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from delegate.common.files import open_to_read
from delegate.errors import InputError
from delegate.plugins import one_line
from delegate.program.dtypes import DType
from delegate.program.expr import evaluate
from delegate.program.model import Input, MethodDefinition, Tree, Value
from delegate.runtime.backend import Array
from delegate.runtime.platform import translate_input_errors


class NamedResults(dict[str, Any]):
    """Named results, such as a model output's: `result["logits"]` or `result.logits`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}; there are: {', '.join(self)}") from None


class NamedTuple(tuple[Any, ...]):
    """A tuple with named items."""

    names: tuple[str, ...]

    def __new__(cls, parts: Sequence[Any], names: Sequence[str]) -> NamedTuple:
        self = super().__new__(cls, parts)
        self.names = tuple(names)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return self[self.names.index(name)]
        raise AttributeError(f"no field {name!r}; there are: {', '.join(self.names)}")


def leaves_of(definition: MethodDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the flat leaves of a method's arguments; raise InputError if their structure differs from the export."""
    with translate_input_errors(f"the arguments of method {definition.name}"):
        return flatten(definition.in_tree, _bind_names(definition, args, kwargs))


def _bind_names(
    definition: MethodDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move keyword arguments that were positional at export to their places, and vice versa."""
    args_tree, kwargs_tree = definition.in_tree.children
    names = _argument_names(args_tree, definition.inputs)
    keyword_arguments = dict(kwargs)
    placed = list(args)
    while len(placed) < len(args_tree.children) and names[len(placed)] in keyword_arguments:
        placed.append(keyword_arguments.pop(names[len(placed)]))
    keywords = [str(k) for k in kwargs_tree.keys if k not in keyword_arguments]
    keyword_arguments.update(zip(keywords, placed[len(names) :], strict=False))
    placed = placed[: max(len(names), len(placed) - len(keywords))]
    missing = [*names[len(placed) :], *(str(k) for k in kwargs_tree.keys if k not in keyword_arguments)]
    unknown = [k for k in keyword_arguments if k not in kwargs_tree.keys]
    if missing or unknown or len(placed) > len(args_tree.children):
        expected = ", ".join([*names, *(f"{k}=" for k in kwargs_tree.keys)])
        problem = [f"missing {', '.join(missing)}"] if missing else []
        problem += [f"unknown {', '.join(unknown)}"] if unknown else []
        raise InputError(
            f"method {definition.name} takes ({expected})",
            where="; ".join(problem) or f"{len(placed)} positional arguments were passed",
            remedy="pass exactly the inputs of the export",
        )
    return tuple(placed), {str(k): keyword_arguments[str(k)] for k in kwargs_tree.keys}


def _argument_names(args: Tree, inputs: Sequence[Input]) -> list[str]:
    """Return the name of each positional argument: the root of its first leaf's path."""
    names: list[str] = []
    first = 0
    for i, child in enumerate(args.children):
        leaves = _count(child)
        root = inputs[first].name.split("[")[0].split(".")[0] if leaves else f"argument {i}"
        names.append(root)
        first += leaves
    return names


def _count(tree: Tree) -> int:
    return 1 if tree.kind == "leaf" else sum(map(_count, tree.children))


def leaf_names(tree: Tree) -> list[str]:
    """Return a name for each leaf of a result: its path, or "output" of a result that is one leaf.

    The names of {"logits": x, "cache": (y, z)} are logits, cache.0 and cache.1.
    """
    return [path.removeprefix(".") or "output" for path in _paths(tree, "")]


def _paths(tree: Tree, path: str) -> Iterator[str]:
    if tree.kind == "leaf":
        yield path
        return
    for key, child in zip(tree.keys or range(len(tree.children)), tree.children, strict=True):
        yield from _paths(child, f"{path}.{key}")


def flatten(tree: Tree, value: Any, path: str = "inputs") -> list[Any]:
    """Return the leaves of a value in the tree's order.

    Raises:
        InputError: the value has another structure; the message names the path of the difference.
    """
    leaves: list[Any] = []
    _flatten(tree, value, path, leaves)
    return leaves


def _flatten(tree: Tree, value: Any, path: str, leaves: list[Any]) -> None:
    if tree.kind == "leaf":
        leaves.append(value)
    elif tree.kind in ("dict", "record"):
        for key, child, part in zip(tree.keys, tree.children, _named_parts(tree, value, path), strict=True):
            _flatten(child, part, f"{path}[{key!r}]", leaves)
    else:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != len(tree.children):
            raise InputError(f"{path} must be a {tree.kind} of {len(tree.children)}, not {_summary(value)}")
        for i, (child, part) in enumerate(zip(tree.children, value, strict=True)):
            _flatten(child, part, f"{path}[{i}]", leaves)


def _named_parts(tree: Tree, value: Any, path: str) -> list[Any]:
    names = [str(k) for k in tree.keys]
    if tree.kind == "record" and not isinstance(value, Mapping):
        missing = [n for n in names if not hasattr(value, n)]
        if missing:
            raise InputError(f"{path} must have the fields {', '.join(names)}", where=f"missing {', '.join(missing)}")
        return [getattr(value, n) for n in names]
    if not isinstance(value, Mapping) or set(value) != set(tree.keys):
        raise InputError(f"{path} must be a dict with the keys {', '.join(names)}, not {_summary(value)}")
    return [value[k] for k in tree.keys]


def _summary(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"one with the keys {', '.join(map(str, value)) or '(none)'}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """Return the value with these leaves; their number must be the tree's."""
    return leaves[0] if tree.kind == "leaf" else _unflatten(tree, iter(leaves))


def _unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree.kind == "leaf":
        return next(leaves)
    parts = [_unflatten(child, leaves) for child in tree.children]
    if tree.kind == "list":
        return parts
    if tree.kind == "dict":
        return dict(zip(tree.keys, parts, strict=True))
    if tree.kind == "record":
        return NamedResults(zip(map(str, tree.keys), parts, strict=True))
    if tree.kind == "namedtuple":
        return NamedTuple(parts, [str(k) for k in tree.keys])
    return tuple(parts)


_SIZE = 2  # of a dynamic dimension, if its range allows that


def random_inputs(method: MethodDefinition, seed: int = 0) -> dict[str, Array]:
    """Return random arrays by input name: floats are normal, integers are 0 or 1, which are valid indices.

    Dynamic dimensions, and numbers, are 2, or the nearest value in their range.
    """
    generator = np.random.default_rng(seed)
    sizes = {i: max(s.minimum, min(_SIZE, s.maximum or _SIZE)) for i, s in enumerate(method.symbols)}
    numbers = {s.input: np.asarray(sizes[i]) for i, s in enumerate(method.symbols) if s.dim < 0}
    free = [(i, method.inputs[i]) for i in free_inputs(method)]
    return {
        leaf.name: numbers[i] if i in numbers else _random(generator, method.values[leaf.value], sizes)
        for i, leaf in free
    }


def leaves(inputs: Sequence[Input], arrays: Mapping[str, Array]) -> list[Any]:
    """Return the leaves of the arguments in order: arrays, and the literals that export fixed."""
    return [arrays.get(i.name, i.literal) for i in inputs]


def free_inputs(method: MethodDefinition) -> list[int]:
    """Return the indices of the inputs that the caller chooses: tensors, and numbers that are symbols."""
    numbers = {s.input for s in method.symbols if s.dim < 0}
    return [n for n, i in enumerate(method.inputs) if i.value >= 0 or n in numbers]


def _random(generator: np.random.Generator, value: Value, sizes: Mapping[int, int]) -> Array:
    shape = [evaluate(d, sizes) for d in value.shape]
    dtype = value.dtype.numpy
    if value.dtype is DType.bfloat16:  # the upper half of a float32
        return (generator.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16).view()
    if dtype.kind == "f":
        return np.asarray(generator.standard_normal(shape)).astype(dtype)
    if dtype.kind == "c":
        return np.asarray(generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


_BEGINNINGS = (b"\x93NUM", b"PK\x03\x04", b"PK\x05\x06")  # of .npy, of an archive, and of an empty one


def load_arrays(path: str | Path) -> Array | dict[str, Array]:
    """Return the array of a .npy file, or name -> array of a .npz file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a file of numpy.save or numpy.savez, or too large for the memory of this machine.
    """
    try:
        with open_to_read(path) as file:
            if file.read(4) not in _BEGINNINGS:  # NumPy would read it as a pickle
                raise ValueError("it is not a .npy or .npz file")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            arrays = {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError):
        raise
    except Exception as error:  # NumPy's and zipfile's are of many kinds: TokenError, MemoryError, zlib.error
        raise ValueError(one_line(error)) from error
    if other := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{other[0]!r} in it is not an array")
    return arrays
