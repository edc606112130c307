"""A region as a list of calls to named functions: plain data, which the runtime part replays with functions of its own.

`delegate.backend.tracing.Recorder` records it. The functions may compute at once, as NumPy does. Or they may build the
graph of a library: `jit(lambda *inputs: recording.replay(FUNCTIONS, inputs, constants))`.
"""

from __future__ import annotations

import json
import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from delegate.common.field_checks import fault
from delegate.errors import BackendFailed
from delegate.program.dtypes import DType
from delegate.program.raw import array_over
from delegate.runtime.backend import Array, BackendRuntime, BlobFormat, Delegate, TensorType

Functions = Mapping[str, Callable[..., Any]]

# Functions of every recording, which compute sizes. Their names have a dot, unlike those of backends.
SIZES: Functions = {
    "size.of": lambda tensor, dim: tensor.shape[dim],
    "size.add": operator.add,
    "size.mul": operator.mul,
    "size.floordiv": operator.floordiv,
    "size.mod": operator.mod,
}
_AGAIN = "lower the model again"


@dataclass(frozen=True)
class Recording:
    """The calls of a region, in order. Inputs, constants and calls are numbered together, in this order.

    An argument of a call is plain JSON. `{"value": 3}` is the result of number 3, and `{"value": 3, "result": 1}` is
    its second result. `{"float": "inf"}` is a number that JSON lacks. Dtypes are their names, e.g. "float32".

    Args:
        inputs: each input's dtype and number of dimensions.
        constants: dtype and shape of each constant, of which the bytes are the blob's data, in this order.
        calls: name of a function and arguments, per call.
        outputs: an argument per output.
        result_types: each output's dtype and number of dimensions.
    """

    inputs: tuple[tuple[str, int], ...]
    constants: tuple[tuple[str, tuple[int, ...]], ...]
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    outputs: tuple[Any, ...]
    result_types: tuple[tuple[str, int], ...]

    def to_bytes(self) -> bytes:
        """Return the recording as JSON; equal recordings give equal bytes."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes | memoryview, functions: Functions) -> Recording:
        """Return the recording of a content, which may be forged.

        Args:
            content: the bytes of `to_bytes`.
            functions: the functions that its calls may name.

        Raises:
            BackendFailed: it is not a recording, or its calls do not fit the functions or each other.
        """
        try:
            data = json.loads(bytes(content))
            recording = cls(
                inputs=tuple((DType[name].name, int(dims)) for name, dims in data["inputs"]),
                constants=tuple((DType[name].name, tuple(map(int, shape))) for name, shape in data["constants"]),
                calls=tuple((str(name), tuple(arguments)) for name, arguments in data["calls"]),
                outputs=tuple(data["outputs"]),
                result_types=tuple((DType[name].name, int(dims)) for name, dims in data["result_types"]),
            )
            recording._require_sound(functions)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise BackendFailed(f"the blob is no recording, {fault(error)}", remedy=_AGAIN) from error
        return recording

    def arrays(self, data: Sequence[memoryview]) -> list[Array]:
        """Return the constants as arrays over the blob's data; bfloat16 as uint16.

        Raises:
            BackendFailed: the data does not hold these constants.
        """
        try:
            return [
                array_over(part, DType[name].numpy, shape)
                for (name, shape), part in zip(self.constants, data, strict=True)
            ]
        except ValueError as error:
            what = "the blob has other constants than its data"
            raise BackendFailed(what, where=str(error), remedy=_AGAIN) from error

    def require_types(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        """Raise BackendFailed unless tensors of a program have the dtypes and dimensions of the recorded ones."""
        for what, types, expected in (("inputs", inputs, self.inputs), ("outputs", outputs, self.result_types)):
            found = [(t.dtype, len(t.shape)) for t in types]
            if found != [(DType[name].numpy, dims) for name, dims in expected]:
                raise BackendFailed(f"the blob has other {what} than its program", remedy=_AGAIN)

    def replay(self, functions: Functions, inputs: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        """Call all functions, and return the outputs.

        Args:
            functions: name -> a function of the recorded arguments.
            inputs, constants: values of the functions' library, with `shape`.
        """
        values = [*inputs, *constants]
        for name, arguments in self.calls:
            function = SIZES.get(name) or functions[name]
            values.append(function(*(resolve(a, values) for a in arguments)))
        return [resolve(output, values) for output in self.outputs]

    def _require_sound(self, functions: Functions) -> None:
        """Raise ValueError unless each call names a function, and only values that exist before the call."""
        count = len(self.inputs) + len(self.constants)
        for name, arguments in self.calls:
            if name not in functions and name not in SIZES:
                raise ValueError(f"it calls {name!r}, which is unknown")
            for argument in arguments:
                _require_argument(argument, count)
            count += 1
        for output in self.outputs:
            if not isinstance(output, dict):
                raise TypeError("an output is no value")
            _require_argument(output, count)
        if len(self.outputs) != len(self.result_types):
            raise ValueError("its outputs have other types")


class RecordingRuntime(BackendRuntime):
    """A runtime part whose blobs are recordings with a header.

    Attributes:
        blob_format: the format of the header.
        functions: the functions that recordings may call.
    """

    blob_format: ClassVar[BlobFormat]
    functions: ClassVar[Functions]

    @abstractmethod
    def create(self, recording: Recording, constants: Sequence[Array], compile_specs: Mapping[str, Any]) -> Delegate:
        """Create a delegate.

        Args:
            recording: checked, except for the number of arguments in each call.
            constants: arrays over the program file; bfloat16 as uint16.
            compile_specs: The artifact's compile specs.
        """

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        recording = Recording.from_bytes(self.blob_format.unpack(blob), self.functions)
        return self.create(recording, recording.arrays(data), compile_specs)


def _require_argument(argument: Any, count: int) -> None:
    if isinstance(argument, list):
        for item in argument:
            _require_argument(item, count)
    elif isinstance(argument, dict):
        if argument.keys() == {"float"}:
            float(argument["float"])
            return
        number, result = argument["value"], argument.get("result", 0)
        if type(number) is not int or not 0 <= number < count or type(result) is not int or result < 0:
            raise ValueError(f"it uses value {number!r} of {count}")
    elif argument is not None and not isinstance(argument, bool | int | float | str):
        raise TypeError("an argument is no plain value")


def resolve(argument: Any, values: Sequence[Any]) -> Any:
    """Return the argument of a function, from its recorded form and the values so far."""
    if isinstance(argument, list):
        return [resolve(item, values) for item in argument]
    if not isinstance(argument, dict):
        return argument
    if "float" in argument:
        return float(argument["float"])
    value = values[argument["value"]]
    return value[argument["result"]] if "result" in argument else value


def to_argument(number: float) -> Any:
    """Return a float as an argument of a recorded call."""
    return number if math.isfinite(number) else {"float": str(number)}
