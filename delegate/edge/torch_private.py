"""All private names of torch that this project uses, each with its reason, and what would replace it.

No other module ahead of time uses a private name, so a new version of torch is checked here. Where torch has no public
name, the comment has none either. `delegate.kernels.aten`, which may not import this package, has a few of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators of quantized_decomposed; torchao is to move them
from torch._decomp import (
    decomposition_table,  # with the Prims; torch.export.default_decompositions() has core ATen alone
)
from torch._dispatch.python import enable_python_dispatcher  # composites in Python, which fix no symbolic sizes
from torch._dynamo.source import ConstantSource  # the root of a derived dimension of an export
from torch._export.converter import TS2EPConverter  # TorchScript; torch.jit itself is deprecated
from torch._higher_order_ops import effects  # operators with tokens
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._higher_order_ops.flex_attention import math_attention  # the formula of flex_attention
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket  # the classes of targets of nodes
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes  # torch.result_type has no kinds
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # the values of nodes
from torch.export import ExportedProgram
from torch.export import _trace as export_trace  # prints the graph of a refused export
from torch.export._tree_utils import reorder_kwargs  # ExportedProgram.module() does it within a call
from torch.export.exported_program import _override_composite_implicit_decomp as override_composites
from torch.fx import Node
from torch.fx.experimental import proxy_tensor, symbolic_shapes
from torch.utils import _pytree as pytree  # the class of an export's call_spec; torch.utils.pytree in later versions
from torch.utils._mode_utils import no_dispatch  # a fake tensor is unpickled without its mode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy import functions as sympy_functions  # the operators in expressions of symbolic sizes
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy  # the class of range_constraints, and its bounds

__all__ = [
    "COMPOSITE", "ELEMENTWISE_TYPE_PROMOTION_KIND", "ConstantSource", "FakeTensor", "FakeTensorMode",
    "HigherOrderOperator", "OpOverload", "OpOverloadPacket", "PythonReferenceAnalysis", "ShapeEnvGuardError",
    "TS2EPConverter", "ValueRanges", "auto_functionalized", "bound_sympy",
    "decomposition_table", "elementwise_dtypes",
    "enable_python_dispatcher", "export_trace", "is_traceable_wrapper_subclass", "math_attention", "no_dispatch",
    "override_composites", "pytree", "reorder_kwargs", "sympy_functions", "sympy_interp",
]  # fmt: skip

# An operator with a kernel of this key is a composite of others.
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# A comparison of a dynamic size in a region or a support check; torch has public names for data-dependent sizes alone.
ShapeEnvGuardError = symbolic_shapes._ShapeEnvGuardError


def schema_of(op: Any) -> Any:
    """Return the schema of an operator: its arguments, what it writes to, its results."""
    return op._schema


def is_composite(op: OpOverload[..., Any]) -> bool:
    """Return true if an operator is a composite of others."""
    return op.has_kernel_for_dispatch_key(COMPOSITE)


def count_composites() -> int:
    """Return the number of composite operators that torch and other libraries have registered."""
    return len(torch._C._dispatch_get_registrations_for_dispatch_key(COMPOSITE.name))


def call_composite(op: OpOverload[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a composite's own kernel; `OpOverload.decompose` would call the kernel that replaces it in a trace."""
    return op._op_dk(COMPOSITE, *args, **kwargs)


def preserve_composite(*args: Any, **kwargs: Any) -> Any:
    """Trace a composite operator as one node, as `torch.export` does."""
    from torch._export.utils import _special_op_to_preserve_cia

    return _special_op_to_preserve_cia(*args, **kwargs)  # type: ignore[no-untyped-call]


def higher_order_name(op: HigherOrderOperator) -> str:
    """Return the name of a higher-order operator, e.g. "cond"."""
    return str(op.name())  # type: ignore[no-untyped-call]


def effect_of(op: Any) -> Any:
    """Return the effect that an operator is registered with; None if it has none."""
    return effects._get_effect(op)


def is_zero_tensor(value: torch.Tensor) -> bool:
    """Return true for torch's zeros without memory, which gradients may be."""
    return value._is_zerotensor()


def storage_identity(value: torch.Tensor) -> int:
    """Return what is equal for tensors of one storage, also for fake ones, which have no address."""
    return int(value.untyped_storage()._cdata)


def guards_code(ep: ExportedProgram) -> list[str]:
    """Return the conditions on inputs that an export assumes, as Python code."""
    return list(ep._guards_code)


def rename_uniquely(node: Node) -> None:
    """Give a node its own name in the namespace of its graph, which then holds when the graph is copied."""
    node.name = node.graph._graph_namespace.create_name(node.name, None)


def replace_symbol(environment: symbolic_shapes.ShapeEnv, symbol: Any, other: Any) -> None:
    """Let an environment read one symbol as another."""
    environment._set_replacement(symbol, other, "traced again by delegate")


@contextlib.contextmanager
def allow_guards(environment: symbolic_shapes.ShapeEnv) -> Iterator[None]:
    """Return a context in which a guard is not an error, also within `error_on_new_guards`."""
    strict, environment._error_on_new_guards = environment._error_on_new_guards, False
    try:
        yield
    finally:
        environment._error_on_new_guards = strict


class ProcessSwitch:
    """A context that switches off a part of torch for the process; the last thread that leaves it switches it on again.

    Args:
        off: returns the context that a single thread would enter.
    """

    def __init__(self, off: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._off, self._lock, self._entered = off, threading.RLock(), 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered:
                self._stack.enter_context(self._off())
            self._entered += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if not self._entered:
                self._stack.close()


@contextlib.contextmanager
def _disable_libraries() -> Iterator[None]:
    """Let torch choose neither MKL-DNN nor NNPACK for an operator.

    With MKL-DNN, composites such as lstm call its own operators. For both, a convolution compares a batch size with 16.
    `torch.backends.mkldnn.flags` would reset other flags too.
    """
    mkldnn, nnpack = torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_nnpack_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(mkldnn)
        torch._C._set_nnpack_enabled(nnpack)


@contextlib.contextmanager
def _disable_tokens() -> Iterator[None]:
    """Let torch decompose operators with effects without tokens."""
    untyped: Any = effects
    own, untyped.has_effects = untyped.has_effects, lambda _: False
    try:
        yield
    finally:
        untyped.has_effects = own


WITHOUT_LIBRARIES = ProcessSwitch(_disable_libraries)
WITHOUT_TOKENS = ProcessSwitch(_disable_tokens)


def forget_export_constants() -> None:
    """Free the constants of a decomposed program, which torch keeps until the next export."""
    proxy_tensor._FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT.clear()


def first_auto_functionalized() -> contextlib.AbstractContextManager[Any]:
    """Return a context of the first form of auto_functionalized: the second hides arguments behind numbers of bases."""
    context: contextlib.AbstractContextManager[Any] = torch._export.config.patch(
        enable_auto_functionalized_v2_for_export=False
    )
    return context
