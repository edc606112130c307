"""The entry point `delegate` of torch's `torch_dynamo_backends`, and its options."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from delegate.common.user_warnings import warn_user
from delegate.compile import to_backend
from delegate.config import Config, load_config
from delegate.edge.graphs import graph_modules
from delegate.edge.node import SYMBOLIC
from delegate.edge.torch_private import WITHOUT_TOKENS, FakeTensor, OpOverload
from delegate.errors import ConfigError, DialectError, ExportError, LoweringError, did_you_mean
from delegate.kernels.libraries import KernelRequest
from delegate.selection import ConfigSource, Request
from delegate_torch_compile.autograd import is_without_formula, keep_composites, require_autograd_safe
from delegate_torch_compile.calls import LoweredGraph, Run
from delegate_torch_compile.programs import insert_known, results_of, to_exported_program
from delegate_torch_compile.torch_private import (
    SET_GRAD_ENABLED,
    TracingContext,
    aot_autograd,
    disable_current_modes,
    tracing,
)
from delegate_torch_compile.unmatched import Patterns, patterns_of

TORCH = "aten"  # torch's own kernels; torch is always installed here


@dataclass(frozen=True)
class CompileOptions:
    """The options for lowering graphs.

    Args:
        backends, config, kernels, cache: see `delegate.to_backend`. If neither this nor the configuration names
            kernels, torch's own kernels run the nodes that no backend runs.
        freeze: if parameters and buffers are compiled in as constants when no gradients are required. If one of them
            is replaced or written to, the graph is compiled again. Torch does not notice writes through `tensor.data`,
            or by other libraries to the same memory.
    """

    backends: Request = None
    config: ConfigSource = None
    kernels: KernelRequest | None = None
    cache: bool | None = None
    freeze: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> CompileOptions:
        """Return the options that torch passes; raise ConfigError for an unknown option."""
        known = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in known:
                where = "options of torch.compile"
                raise ConfigError(f"there is no option {name!r}", where=where, remedy=did_you_mean(name, known))
        settings = cls(**(options or {}))
        if settings.quantizes and not settings.freeze:
            what = "quantization: weights that are inputs of a graph cannot be quantized"
            raise ConfigError(what, where="options of torch.compile", remedy='leave "freeze" out, or "quantization"')
        return settings

    @cached_property
    def configuration(self) -> Config:
        """The configuration, loaded."""
        return load_config(self.config if self.config is not None else {})

    @property
    def quantizes(self) -> bool:
        """Return if graphs are quantized before they are lowered."""
        return self.configuration.quantization is not None

    def require_whole(self, graph_break: str) -> None:
        """Raise ConfigError for calibration data, which is for the inputs of a model, if torch splits the model.

        Args:
            graph_break: the reason why the graph ends before the model does; empty if it does not.
        """
        section = self.configuration.quantization
        if graph_break and section is not None and section.calibration is not None:
            what = (
                f"quantization.calibration: the data is for a model's inputs, and torch splits the model: {graph_break}"
            )
            remedy = "remove the cause, which fullgraph=True reports, or use a dynamic scheme"
            raise ConfigError(what, where="options of torch.compile", remedy=remedy)

    def require_no_samples(self) -> None:
        """Raise ConfigError for options that need a graph's inputs or weights: graphs of gradients have neither."""
        config = self.configuration
        needing = {
            "quantization": self.quantizes,
            "verify": config.verify is not None,
            "placement.policy": config.placement.policy == "measured",
        }
        for key in (key for key, is_set in needing.items() if is_set):
            what = f"{key}: it is only for graphs without gradients, but this graph computes them"
            remedy = "call the model under torch.no_grad(), or leave the key out"
            raise ConfigError(what, where="options of torch.compile", remedy=remedy)


# Normalization of half-precision values with float32 weights, as under autocast: torch's shape functions give the
# statistics the dtype of the values, and its CPU kernels give them the dtype of the weights. Computed in float32, as
# inside of these kernels, the dtypes in a graph are those at run time.
_HALF = (torch.float16, torch.bfloat16)


def _compute_in_float32(op: OpOverload[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return an operator's results in float32, and the first in the values' dtype, if the arguments' dtypes differ."""
    dtypes = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
    half = next((dtype for dtype in _HALF if dtype in dtypes), None)
    if half is None or torch.float32 not in dtypes:
        return NotImplemented
    wide = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args]
    first, *others = op(*wide, **kwargs)
    return None if first is None else first.to(half), *others


_aten = torch.ops.aten
_DECOMPOSITIONS: Mapping[OpOverload[..., Any], Callable[..., Any]] = {
    op: partial(_compute_in_float32, op)
    for op in (
        _aten.native_layer_norm.default,
        _aten.native_layer_norm_backward.default,
        _aten.native_group_norm.default,
        _aten.native_group_norm_backward.default,
        _aten._native_batch_norm_legit.no_stats,
        _aten._native_batch_norm_legit_functional.default,
        _aten._native_batch_norm_legit_no_training.default,
        _aten.native_batch_norm_backward.default,
    )
}


def compile_graph(
    module: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None, options: Any = None
) -> Callable[..., Any]:
    """Compile a graph that torch's compiler captured, for `torch.compile(model, backend="delegate", options=...)`.

    AOTAutograd makes the graph functional; if gradients are required, it makes a forward and a backward graph, and each
    is lowered like any program. If a graph cannot be lowered, e.g. because an operator has no kernel, torch runs it,
    with a warning.

    Args:
        module: the captured graph.
        example_inputs: the inputs of the graph, with parameters and buffers.
        mode: must be None, since modes do not exist.
        options: see `CompileOptions`.

    Raises:
        ConfigError: an option is wrong.
        DelegateError: see `to_backend`.
    """
    if mode is not None:
        raise ConfigError(f"torch.compile's mode {mode!r} is for another backend", remedy="leave it out")
    settings = CompileOptions.of(options)
    graph_break = _graph_break(module)
    settings.require_whole(graph_break)
    patterns = patterns_of(options, settings.configuration.partitioning)
    constants = _weights(module, example_inputs) if settings.freeze else {}
    count = len(example_inputs)
    with contextlib.ExitStack() as traced:
        if not _differentiates(module, example_inputs):
            traced.enter_context(keep_composites())  # which have no derivative formulas

        def inference(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            traced.close()  # lowering decomposes composites
            same = len(inputs) == count
            frozen = _unwritten(constants) if same else {}
            return _lower_graph(settings, patterns, graph, frozen, example_inputs if same else ())

        def lower(graph: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            settings.require_no_samples()
            return _lower_graph(settings, patterns, graph, {})

        compiler = aot_autograd(
            fw_compiler=lower, bw_compiler=lower, inference_compiler=inference, decompositions=_DECOMPOSITIONS
        )
        try:
            with WITHOUT_TOKENS:
                compiled: Callable[..., Any] = compiler(module, example_inputs)
        except RuntimeError as error:
            if is_without_formula(error):
                require_autograd_safe(module, example_inputs)  # its error names the node
            raise
    if not graph_break:
        patterns.warn()
    return patterns.warn_in_second_call(compiled)


def _graph_break(module: GraphModule) -> str:
    """Return torch's reason to end a graph before the model ends; empty if it does not."""
    reason = getattr(module, "compile_subgraph_reason", None)
    return str(reason.reason).strip().partition("\n")[0] if reason is not None and reason.graph_break else ""


# The functions that begin a derivative in a captured graph: of torch.func, of forward mode, and of torch.autograd.
_DERIVATIVES = frozenset({"_grad_increment_nesting", "_enter_dual_level", "grad"})


def _differentiates(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Return true if torch needs derivative formulas to trace a graph: for its results, or for derivatives inside."""
    calls = [node for body in graph_modules(module) for node in body.graph.nodes if node.op == "call_function"]
    if any(getattr(node.target, "__name__", "") in _DERIVATIVES for node in calls):
        return True
    enabled = torch.is_grad_enabled() or any(n.target is SET_GRAD_ENABLED and n.args[0] for n in calls)
    return enabled and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def _weights(module: GraphModule, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Return the inputs that are parameters or buffers of modules, by their positions."""
    weights = {}
    for number, (node, value) in enumerate(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)):
        static = "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
        real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and not value.is_inference()
        if real and (static or isinstance(value, torch.nn.Parameter)):
            weights[number] = value
    return weights


def _lower_graph(
    settings: CompileOptions,
    patterns: Patterns,
    module: GraphModule,
    constants: Mapping[int, torch.Tensor],
    inputs: Sequence[Any] = (),
) -> Callable[..., Any]:
    """Lower a graph of AOTAutograd and return a function that runs it.

    Args:
        settings: the options.
        patterns: Patterns of modules and nodes; the graph is added.
        module: the graph.
        constants: the inputs to compile in, by their positions.
        inputs: the inputs of the first call, for calibration, accuracy checks and measurements; () if unknown.
    """
    results = tuple(results_of(module))
    computed = [r for r in results if isinstance(r, Node)]

    def lower(frozen: Mapping[int, torch.Tensor]) -> Run:
        with tracing(None), disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "method forward was exported in training mode")  # intended here
            options = {"config": settings.config, "kernels": _kernels(settings), "cache": settings.cache}
            samples = [_sample(value) for number, value in enumerate(inputs) if number not in frozen]
            program = to_exported_program(module, frozen, samples if inputs else None)
            lowered = to_backend(program, settings.backends, **options)
            patterns.add_graph(lowered.report.nodes)
            return lowered

    if not computed:
        return _mark_boxed(lambda args: list(results))
    try:
        call = LoweredGraph(lower, constants, computed, settings.quantizes)
    except (DialectError, ExportError, LoweringError) as error:
        patterns.give_up()
        warn_user(f"torch runs a graph that cannot be lowered: {error}")
        return _mark_boxed(lambda args: module(*args))
    return _mark_boxed(lambda args: insert_known(results, call(args)))


def _sample(value: Any) -> Any:
    """Return a copy of an input, because a program may write to its inputs; for a dynamic size, its number."""
    if isinstance(value, SYMBOLIC):
        return value.node.hint
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _mark_boxed(run: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _unwritten(weights: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the weights that the graph does not write to, according to AOTAutograd's analysis."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return {}
    return {n: w for n, w in weights.items() if not metadata.input_info[n].mutates_data}


def _kernels(settings: CompileOptions) -> Any:
    if settings.kernels is not None or settings.configuration.kernels is not None:
        return settings.kernels
    return TORCH
