"""The inputs and outputs of a method as the open inference protocol describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delegate.errors import ConfigError
from delegate.program import model
from delegate.program.dtypes import DType
from delegate.program.expr import Expr
from delegate.program.model import Ref
from delegate.runtime.arguments import leaf_names
from delegate_serve.runtime.datatypes import NAMES


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or an output.

    Args:
        name: The input's name in the program, or the path of the output in the result.
        leaf: its position among the leaves of the arguments or of the result.
        dtype: the type of its elements.
        shape: its sizes; -1 if a size is known only in a call.
        is_number: the program takes a plain integer in place of a tensor.
    """

    name: str
    leaf: int
    dtype: DType
    shape: tuple[int, ...]
    is_number: bool = False

    def metadata(self) -> dict[str, Any]:
        """Return the description of the protocol."""
        return {"name": self.name, "datatype": NAMES[self.dtype], "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a method by name, without literals that the export fixed.

    Args:
        inputs, outputs: by name, in the order of the program.
        literals: the leaves of the arguments; those that are not literals are None.
    """

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    literals: tuple[int | float | bool | str | None, ...]


def signature_of(method: model.MethodDefinition, where: str) -> Signature:
    """Return the signature of a method.

    Args:
        method: A program's method.
        where: the file, for messages.

    Raises:
        ConfigError: an input or output has no form in the protocol.
    """
    numbers = {symbol.input for symbol in method.symbols if symbol.input >= 0 and symbol.dim < 0}
    inputs = [
        _tensor(method, i.name, leaf, i.value) if i.value >= 0 else Tensor(i.name, leaf, DType.int64, (1,), True)
        for leaf, i in enumerate(method.inputs)
        if i.value >= 0 or leaf in numbers
    ]
    names = leaf_names(method.out_tree)
    outputs = [
        _tensor(method, name, leaf, output.index)
        for leaf, (name, output) in enumerate(zip(names, method.outputs, strict=True))
        if isinstance(output, Ref)
    ]
    for name, output in zip(names, method.outputs, strict=True):
        if isinstance(output, Expr):
            what = f"output {name!r} of method {method.name} is a number, which the protocol does not have"
            raise ConfigError(what, where=where, remedy="return a tensor")
        if names.count(name) > 1:
            what = f"two outputs of method {method.name} have the name {name!r}"
            raise ConfigError(what, where=where, remedy="use other keys in the result of the module")
    for tensor in (*inputs, *outputs):
        if tensor.dtype not in NAMES:
            what = f"{tensor.name!r} of method {method.name} is {tensor.dtype.name}, which the protocol does not have"
            raise ConfigError(what, where=where, remedy="use real numbers, for example view_as_real")
    literals = tuple(i.literal for i in method.inputs)
    return Signature({t.name: t for t in inputs}, {t.name: t for t in outputs}, literals)


def _tensor(method: model.MethodDefinition, name: str, leaf: int, index: int) -> Tensor:
    value = method.values[index]
    return Tensor(name, leaf, value.dtype, tuple(-1 if isinstance(d, Expr) else d for d in value.shape))
