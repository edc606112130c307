"""The entry point `delegate` of torch's `torch_dynamo_backends`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from delegate.compile import to_backend
from delegate.dynamo.calls import Call, Run
from delegate.dynamo.options import TORCH, CompileOptions
from delegate.dynamo.programs import exported, results_of, with_known
from delegate.dynamo.training import require_autograd_safe
from delegate.edge.decompose import keeping_composites
from delegate.edge.differentiable import is_without_formula
from delegate.edge.node import SYMBOLIC
from delegate.errors import ConfigError, DialectError, ExportError, LoweringError


def compile_graph(
    module: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Any = None
) -> Callable[..., Any]:
    """What runs a graph that torch's compiler has captured: `torch.compile(model, backend="delegate", options=...)`.

    AOTAutograd makes it functional, and where gradients are asked for, two graphs of it. Each is lowered like any
    program. A graph that cannot be lowered, e.g. as an operator has no kernel, torch runs, with a warning.

    Args:
        module: what was captured.
        example_inputs: its inputs, parameters and buffers among them.
        mode: none is known.
        options: see `CompileOptions`.

    Raises:
        ConfigError: an option is wrong.
        DelegateError: as `to_backend` raises.
    """
    if mode is not None:
        raise ConfigError(f"torch.compile's mode {mode!r} is for another backend", remedy="leave it out")
    settings = CompileOptions.of(options)
    constants = _weights(module, example_inputs) if settings.freeze else {}
    count = len(example_inputs)
    with contextlib.ExitStack() as traced:
        if not _trains(example_inputs):
            traced.enter_context(keeping_composites())  # what is not differentiated needs no formulas

        def inference(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            traced.close()  # lowering takes composites apart
            same = len(inputs) == count
            return _lowered(settings, graph, _never_written(constants) if same else {}, example_inputs if same else ())

        def lower(graph: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            settings.require_no_samples()
            return _lowered(settings, graph, {})

        compiler = aot_autograd(fw_compiler=lower, bw_compiler=lower, inference_compiler=inference)
        try:
            made: Callable[..., Any] = compiler(module, example_inputs)
        except RuntimeError as error:
            if is_without_formula(error):
                require_autograd_safe(module, example_inputs)  # which names the node
            raise
    return made


def _trains(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def _weights(module: GraphModule, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """The inputs that are parameters and buffers of modules, by their numbers."""
    found = {}
    for number, (node, value) in enumerate(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)):
        static = "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
        held = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and not value.is_inference()
        if held and (static or isinstance(value, torch.nn.Parameter)):
            found[number] = value
    return found


def _lowered(
    settings: CompileOptions,
    module: GraphModule,
    constants: Mapping[int, torch.Tensor],
    inputs: Sequence[Any] = (),
) -> Callable[..., Any]:
    """Return what runs a graph of AOTAutograd, some of whose inputs are constants.

    Args:
        settings: how it is lowered.
        module: the graph.
        constants: by their numbers among the inputs.
        inputs: of its first call, to calibrate, verify and measure on; () if they are not known.
    """
    results = tuple(results_of(module))
    computed = [r for r in results if isinstance(r, Node)]

    def lower(held: Mapping[int, torch.Tensor]) -> Run:
        with tracing(None), _disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "method forward was exported in training mode")  # it is meant so here
            options = {"config": settings.config, "kernels": _kernels(settings), "cache": settings.cache}
            samples = [_sample(value) for number, value in enumerate(inputs) if number not in held]
            return to_backend(exported(module, held, samples if inputs else None), settings.backends, **options)

    if not computed:
        return _boxed(lambda args: list(results))
    try:
        call = Call(lower, constants, computed, settings.quantizes)
    except (DialectError, ExportError, LoweringError) as error:
        warnings.warn(f"torch runs a graph that cannot be lowered: {error}", RuntimeWarning, stacklevel=2)
        return _boxed(lambda args: module(*args))
    return _boxed(lambda args: with_known(results, call(args)))


def _sample(value: Any) -> Any:
    """Return a copy of an input, since a program may write to its inputs; of a dynamic size its number."""
    if isinstance(value, SYMBOLIC):
        return value.node.hint
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _boxed(run: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _never_written(weights: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The weights that the graph does not write to, which AOTAutograd has found out."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return {}
    return {n: w for n, w in weights.items() if not metadata.input_info[n].mutates_data}


def _kernels(settings: CompileOptions) -> Any:
    if settings.kernels is not None or settings.configuration.kernels is not None:
        return settings.kernels
    return TORCH
