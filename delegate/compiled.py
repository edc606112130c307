"""CompiledProgram, the result of to_backend: called with torch tensors, saved to a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from delegate.edge.node import torch_dtype
from delegate.edge.sources import Model
from delegate.edge.torch_private import pytree
from delegate.errors import InputError
from delegate.events import Listener
from delegate.kernels.libraries import KernelRequest
from delegate.partitioner.saved import SavedPlan
from delegate.plugins import one_line
from delegate.program import file
from delegate.program.dtypes import DType
from delegate.program.memory_picture import MemoryPicture, memory_pictures
from delegate.program.model import Program, Ref
from delegate.registry import Registry
from delegate.report import Report
from delegate.runtime.backend import Array
from delegate.runtime.context import Context
from delegate.runtime.fallback import FallbackEvent
from delegate.runtime.lifecycle import NotPicklable
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.method import Method
from delegate.runtime.profile import Profile

C = TypeVar("C", bound=Context)


class TensorMethod(NotPicklable):
    """A view of a method of the runtime: it takes and returns torch tensors, in the module's own pytree.

    Args:
        method: the bound method of the runtime.
        in_spec, out_spec: torch's pytree specs of (args, kwargs) and of the result.
    """

    def __init__(self, method: Method, in_spec: Any, out_spec: Any) -> None:
        self._method, self._in_spec, self._out_spec = method, in_spec, out_spec
        definition = method.definition
        kinds = [definition.values[i.value].dtype if i.value >= 0 else None for i in method.inputs]
        self._halves = [number for number, kind in enumerate(kinds) if kind is DType.bfloat16]
        self._dtypes = [definition.values[o.index].dtype if isinstance(o, Ref) else None for o in definition.outputs]

    def __repr__(self) -> str:
        return repr(self._method).replace("<Method", "<TensorMethod", 1)

    @property
    def name(self) -> str:
        """The name of the method in the program."""
        return self._method.name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run on CPU tensors and return the module's results, without gradients.

        Keyword arguments may be positional ones of the export, in any order.

        Raises:
            InputError: the arguments have another structure, shape or dtype than the exported ones.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:  # another order, other names or containers, or an error
            leaves = self._method.leaves(args, kwargs)
        written = self._method.written
        arrays = [  # other copies wait for the size check: a view of few bytes may need a copy of many
            to_array(leaf, definition.name, row_major=number in written)
            for number, (leaf, definition) in enumerate(zip(leaves, self._method.inputs, strict=True))
        ]
        for number in self._halves:
            _refuse_integers(leaves[number], self._method.inputs[number].name)
        results = self._method.run(arrays)
        for number in written:
            _give_back(arrays[number], leaves[number])
        return pytree.tree_unflatten(
            [to_tensor(r, d) for r, d in zip(results, self._dtypes, strict=True)], self._out_spec
        )


class TensorContext(NotPicklable, Generic[C]):
    """A view of a context of the runtime: its methods and states with torch tensors.

    Args:
        specs: method -> torch's pytree specs of (args, kwargs) and of the result.
        open_context: returns the context at its first use.
    """

    def __init__(self, specs: Mapping[str, tuple[Any, Any]], open_context: Callable[[], C]) -> None:
        self._specs, self._open_context = dict(specs), open_context

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._specs)}>"

    @cached_property
    def loaded(self) -> C:
        """The same context in the runtime, called with NumPy arrays."""
        return self._open_context()

    @cached_property
    def _methods(self) -> dict[str, TensorMethod]:
        return {name: TensorMethod(self.loaded.method(name), *spec) for name, spec in self._specs.items()}

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of its methods."""
        return tuple(self._specs)

    def method(self, name: str) -> TensorMethod:
        """Return a method by name; raises ProgramError for an unknown one."""
        self.loaded.method(name)
        return self._methods[name]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call method "forward", or the only method, with torch tensors."""
        return self.method(self.loaded.default_method)(*args, **kwargs)

    @property
    def states(self) -> dict[str, torch.Tensor]:
        """A copy of the states by name, in the dtypes and shapes of the module's buffers."""
        return self.snapshot()

    def listen(self, listener: Listener, *, inner: bool = False) -> AbstractContextManager[None]:
        """Send the events of calls to a listener; see `delegate.runtime.context.Context.listen`."""
        return self.loaded.listen(listener, inner=inner)

    def profile(self, *, inner: bool = False) -> AbstractContextManager[Profile]:
        """Measure the calls of this context; see `delegate.runtime.context.Context.profile`."""
        return self.loaded.profile(inner=inner)

    def reset(self) -> None:
        """Set all states back to where they started."""
        self.loaded.reset()

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return a copy of all states by name, as they are between two calls."""
        dtypes = self.loaded.state_dtypes
        return {name: to_tensor(array, dtypes[name]) for name, array in self.loaded.snapshot().items()}

    def restore(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Set all states to what `snapshot` gave, here or in another context of the program.

        Raises:
            InputError: names, dtypes or shapes differ from the states, which then stay unchanged.
        """
        self.loaded.restore({name: to_array(tensor, name) for name, tensor in snapshot.items()})


class CompiledProgram(TensorContext[LoadedProgram]):
    """A program for this process and for a file.

    Example::

        program = delegate.to_backend(exported, "xnnpack")
        result = program(torch.zeros(1, 8))  # a tensor
        program.save("model.dlg")

    The first call creates the delegates on this machine; saving does not need them, and the program is itself the
    default context. `context` returns further ones, each with its own states.

    Args:
        program: the program of the runtime.
        specs: method -> torch's pytree specs of (args, kwargs) and of the result.
        report: the backend of each node, and the verdicts of the others.
        registry: the registry of backends and kernels.
        kernels: the kernel libraries to run on in this process; see `delegate.load`. They are not saved.
        plan: the backend of each node, as data: `plan.save(path)`, `plan.differences(other)`, and
            `to_backend(..., placement=plan)` to apply it again.
        debugger: what `debug` calls: it lowers the program again, and searches for its faults.
    """

    def __init__(
        self,
        program: Program,
        specs: Mapping[str, tuple[Any, Any]],
        report: Report,
        registry: Registry,
        kernels: KernelRequest | None = None,
        *,
        plan: SavedPlan,
        debugger: Callable[..., Any],
    ) -> None:
        super().__init__(specs, self._load)
        self.program, self._planned, self._registry, self._kernels = program, report, registry, kernels
        self.plan, self._debugger = plan, debugger

    def __repr__(self) -> str:
        return f"<CompiledProgram of {self._planned.summary.replace(chr(10), ' | ')}>"

    @property
    def report(self) -> Report:
        """The backend of each node, and the verdicts of others; the notes end with the fallbacks in this process.

        Profiled methods have the measured share of their portable kernels in place of the estimated one.
        """
        loaded: LoadedProgram | None = vars(self).get("loaded")  # not loaded just for the report
        return loaded.add_observations(self._planned) if loaded else replace(self._planned, memory=self._memory)

    @cached_property
    def _memory(self) -> tuple[MemoryPicture, ...]:
        return memory_pictures(self.program)

    def _repr_html_(self) -> str:
        """Return the page of the report in a frame, for notebooks."""
        return self.report._repr_html_()

    def _load(self) -> LoadedProgram:
        return LoadedProgram(self.program, self._registry, self._kernels, trust_code=True)  # it was compiled here

    @property
    def fallback_events(self) -> tuple[FallbackEvent, ...]:
        """The partitions that fell back to kernels in this process, in order of time."""
        loaded: LoadedProgram | None = vars(self).get("loaded")
        return loaded.fallback_events if loaded else ()

    def context(self) -> TensorContext[Context]:
        """Return a new context: the same methods, with their own states at their initial values."""
        context = self.loaded.context()
        return TensorContext(self._specs, lambda: context)

    def debug(
        self,
        model: Model,
        inputs: Any = None,
        *,
        budget: float = 60.0,
        output: str | os.PathLike[str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Any:
        """Return the operators that return wrong values, with the arguments and errors of `delegate_devtools.debug`.

        The model is lowered again with the plan and the quantization of this program, which keeps neither the model's
        weights nor a float reference: a `Verify` in `inputs` may have one.

        Raises PartitionError too, if the plan is of another model, and ConfigError if the package delegate-devtools is
        not installed.
        """
        return self._debugger(model, inputs, budget=budget, output=output, progress=progress)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file that runs without torch, with the same bytes for each save.

        Raises:
            ProgramError: the file cannot be written; an old file of that name stays as it was.
        """
        file.save(self.program, path)

    def __str__(self) -> str:
        return str(self.report)


def to_array(leaf: Any, name: str, *, row_major: bool = True) -> Any:
    """Convert a tensor to an array for the runtime, without a copy if possible; other values are returned unchanged.

    Args:
        leaf: a leaf of the arguments, or a state.
        name: its name in messages.
        row_major: copy a tensor that is not in row-major order.

    Raises:
        InputError: the tensor is sparse, quantized, nested, or holds no data.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    try:
        tensor = leaf.detach().cpu()
        tensor = (
            (tensor.contiguous() if row_major else tensor).resolve_conj().resolve_neg()
        )  # bits of torch's that NumPy has not
        return tensor.view(torch.uint16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()
    except (RuntimeError, TypeError) as error:  # of a sparse, quantized, nested, meta or fake tensor
        what = f"input {name!r} cannot be read as an array: {one_line(error)}"
        raise InputError(what, remedy="give a dense tensor that holds data") from error


def _refuse_integers(leaf: Any, name: str) -> None:
    """Raise InputError for uint16 tensors, which are not accepted as bfloat16 bits since torch has bfloat16."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.uint16:
        raise InputError(f"input {name!r} is uint16, but the program takes bfloat16", remedy="give a bfloat16 tensor")


def to_tensor(result: Any, dtype: DType | None) -> Any:
    """Convert an array of the runtime to a tensor, without a copy; other values are returned unchanged."""
    if not isinstance(result, np.ndarray):
        return result
    tensor = torch.from_numpy(result if result.flags.writeable else result.copy())  # an expanded view is read-only
    return tensor.view(torch_dtype(dtype)) if dtype is DType.bfloat16 else tensor


def _give_back(array: Array, tensor: torch.Tensor) -> None:
    """Copy a written value to the caller's tensor if the method ran on a row-major copy of it."""
    if array.ctypes.data != tensor.data_ptr():
        value = torch.from_numpy(array)
        tensor.detach().copy_(value.view(torch.bfloat16) if tensor.dtype is torch.bfloat16 else value)
