"""CompiledProgram: what to_backend gives. Called with torch tensors, saved to a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

from delegate.edge.node import torch_dtype
from delegate.errors import InputError
from delegate.kernels.libraries import KernelRequest
from delegate.partitioner.saved import SavedPlan
from delegate.plugins import one_line
from delegate.program import file
from delegate.program.dtypes import DType
from delegate.program.model import Program, Ref
from delegate.registry import Registry
from delegate.report import Report
from delegate.runtime.backend import Array
from delegate.runtime.context import Context
from delegate.runtime.lifecycle import NotPicklable
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.method import Method
from delegate.runtime.profile import Profile


class CompiledMethod(NotPicklable):
    """One method of a compiled program, called with torch tensors in the module's own pytree.

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

    @property
    def name(self) -> str:
        """Its name in the program."""
        return self._method.name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run on CPU tensors; gives what the module would give, without gradients.

        Keyword arguments may be positional ones of the export, in any order.

        Raises:
            InputError: the arguments have another structure, shape or dtype than the exported ones.
        """
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:  # in another order, by other names, in other containers, or wrong
            leaves = self._method.leaves(args, kwargs)
        written = self._method.written
        arrays = [  # sizes are checked before anything else is copied: a view of few bytes may be a copy of many
            to_array(leaf, given.name, row_major=number in written)
            for number, (leaf, given) in enumerate(zip(leaves, self._method.inputs, strict=True))
        ]
        for number in self._halves:
            _refuse_integers(leaves[number], self._method.inputs[number].name)
        results = self._method.run(arrays)
        for number in written:
            _give_back(arrays[number], leaves[number])
        return pytree.tree_unflatten(
            [to_tensor(r, d) for r, d in zip(results, self._dtypes, strict=True)], self._out_spec
        )


class CompiledContext(NotPicklable, ABC):
    """A context of a compiled program: methods that share states with each other alone, called with torch tensors.

    Args:
        specs: method -> torch's pytree specs of (args, kwargs) and of the result.
    """

    def __init__(self, specs: Mapping[str, tuple[Any, Any]]) -> None:
        self._specs = dict(specs)

    @property
    @abstractmethod
    def loaded(self) -> Context:
        """The same context in the runtime, called with NumPy arrays."""

    @cached_property
    def _methods(self) -> dict[str, CompiledMethod]:
        return {name: CompiledMethod(self.loaded.method(name), *spec) for name, spec in self._specs.items()}

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of its methods."""
        return tuple(self._specs)

    def method(self, name: str) -> CompiledMethod:
        """A method by name; raises ProgramError for an unknown one."""
        self.loaded.method(name)
        return self._methods[name]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call method "forward", or the only method, with torch tensors."""
        return self.method(self.loaded.default_method)(*args, **kwargs)

    @property
    def states(self) -> dict[str, torch.Tensor]:
        """A copy of the states by name, in the dtypes and shapes of the module's buffers."""
        return self.snapshot()

    def profile(self) -> AbstractContextManager[Profile]:
        """Watch the calls of this context inside a `with` block; see `delegate.runtime.context.Context.profile`."""
        return self.loaded.profile()

    def reset(self) -> None:
        """Set all states back to where they started."""
        self.loaded.reset()

    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of all states by name, as they are between two calls."""
        dtypes = self.loaded.state_dtypes
        return {name: to_tensor(array, dtypes[name]) for name, array in self.loaded.snapshot().items()}

    def restore(self, snapshot: Mapping[str, torch.Tensor]) -> None:
        """Set all states to what `snapshot` gave, here or in another context of the program.

        Raises:
            InputError: names, dtypes or shapes are not those of the states; they are then as they were.
        """
        self.loaded.restore({name: to_array(tensor, name) for name, tensor in snapshot.items()})


class LoadedContext(CompiledContext):
    """A context of the runtime, called with torch tensors.

    Args:
        loaded: the context.
        specs: method -> torch's pytree specs of (args, kwargs) and of the result.
    """

    def __init__(self, loaded: Context, specs: Mapping[str, tuple[Any, Any]]) -> None:
        super().__init__(specs)
        self._loaded = loaded

    @property
    def loaded(self) -> Context:
        """The same context in the runtime, called with NumPy arrays."""
        return self._loaded


class CompiledProgram(CompiledContext):
    """A program for this process and for a file.

    Calling it makes the delegates on this machine, when first needed; saving it does not need them. It is a context
    itself, the default one; `context` gives more of them, each with states of its own.

    Args:
        program: what was emitted.
        specs: method -> torch's pytree specs of (args, kwargs) and of the result.
        report: who runs what, and why not elsewhere.
        registry: where backends and kernels are looked up.
        kernels: the kernel libraries to run on in this process; see `delegate.load`. They are not saved.
        plan: which backend runs which nodes, as data: `plan.save(path)`, `plan.differences(other)`, and
            `to_backend(..., plan=plan)` to have the same again.
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
    ) -> None:
        super().__init__(specs)
        self.program, self._planned, self._registry, self._kernels = program, report, registry, kernels
        self.plan = plan

    @property
    def report(self) -> Report:
        """Who runs what, and why not elsewhere; its notes end with the partitions that have fallen back here.

        Methods that were profiled here have the measured share of their portable kernels in place of the estimated one.
        """
        loaded: LoadedProgram | None = vars(self).get("loaded")  # it is not made for this
        return loaded.observed(self._planned) if loaded else self._planned

    @cached_property
    def loaded(self) -> LoadedProgram:
        """The same program in the runtime, called with NumPy arrays."""
        return LoadedProgram(self.program, self._registry, self._kernels, trust_code=True)  # it was compiled here

    def context(self) -> CompiledContext:
        """A new context: the same methods, whose states start anew and are shared with no other context."""
        return LoadedContext(self.loaded.context(), self._specs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file that runs without torch. Saving twice gives the same bytes.

        Raises:
            ProgramError: the file cannot be written; an old file of that name stays as it was.
        """
        file.save(self.program, path)

    def __str__(self) -> str:
        return str(self.report)


def to_array(leaf: Any, name: str, *, row_major: bool = True) -> Any:
    """A tensor as the array that the runtime takes, without a copy where that can be; anything else unchanged.

    Args:
        leaf: of the arguments, or a state.
        name: for messages.
        row_major: copy a tensor whose elements lie in another order.

    Raises:
        InputError: it is sparse, quantized, nested, or holds no data.
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
    """Torch has bfloat16, so integers are no bits of it."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.uint16:
        raise InputError(f"input {name!r} is uint16, but the program takes bfloat16", remedy="give a bfloat16 tensor")


def to_tensor(result: Any, dtype: DType | None) -> Any:
    """An array of the runtime as a tensor of this element type, without a copy; anything else unchanged."""
    if not isinstance(result, np.ndarray):
        return result
    tensor = torch.from_numpy(result if result.flags.writeable else result.copy())  # an expanded view is read-only
    return tensor.view(torch_dtype(dtype)) if dtype is DType.bfloat16 else tensor


def _give_back(array: Array, tensor: torch.Tensor) -> None:
    """Copy a new value out where the method ran on a row-major copy of the caller's tensor."""
    if array.ctypes.data != tensor.data_ptr():
        made = torch.from_numpy(array)
        tensor.detach().copy_(made.view(torch.bfloat16) if tensor.dtype is torch.bfloat16 else made)
