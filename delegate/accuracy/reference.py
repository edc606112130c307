"""References: methods and regions that torch runs, operator by operator, and trials of parts of a region."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from delegate.accuracy.choices import Compare, compare_of
from delegate.accuracy.figures import difference
from delegate.backend.aot import PreprocessResult, Region
from delegate.backend.exported import plain_graph
from delegate.backend.guilty import Unit, part_of
from delegate.compiled import to_array, to_tensor
from delegate.edge.graphs import call, is_random
from delegate.edge.node import arguments, draws, dtype_of, writes_in_place
from delegate.edge.torch_private import pytree, reorder_kwargs
from delegate.errors import AccuracyError
from delegate.partitioner.extraction import LoweredProgram
from delegate.plugins import one_line
from delegate.report.rows import Accuracy
from delegate.runtime.backend import Delegate


class EagerMethods:
    """The exported methods, run by torch; they have their own states, shared by name.

    Args:
        exported: the methods.
        states: method -> the name of each buffer that is a state -> the name of the state.
    """

    def __init__(self, exported: Mapping[str, ExportedProgram], states: Mapping[str, Mapping[str, str]]) -> None:
        self._modules = {name: ep.module() for name, ep in exported.items()}
        self._in_specs = {name: ep.call_spec.in_spec for name, ep in exported.items()}
        buffers = {name: dict(m.named_buffers(remove_duplicate=False)) for name, m in self._modules.items()}
        self._states = {
            name: {buffer: state for buffer, state in states[name].items() if buffer in own}
            for name, own in buffers.items()
        }
        self.states: dict[str, torch.Tensor] = {}
        for name, own in buffers.items():
            for buffer, state in self._states[name].items():
                self.states.setdefault(state, own[buffer].clone())

    def names(self, method: str) -> Sequence[str]:
        """Return the names of a method's states."""
        return list(self._states[method].values())

    def in_spec(self, method: str) -> Any:
        """Return torch's pytree spec of the (args, kwargs) of a method."""
        return self._in_specs[method]

    def run(self, method: str, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """Run a method and return the tensors of the result, in order; written arguments hold their new values.

        Args:
            method: the name of the method.
            leaves: the leaves of the arguments, in order.

        Raises:
            AccuracyError: torch cannot run the method.
        """
        module = self._modules[method]
        for buffer, state in self._states[method].items():  # the caller's program must keep its own tensors
            owner, _, leaf = buffer.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = self.states[state]
        try:
            with torch.no_grad():
                args, kwargs = pytree.tree_unflatten(list(leaves), self._in_specs[method])
                return tensors(module(*args, **kwargs))
        except Exception as error:  # an operator may raise anything
            raise no_reference(f"method {method}", error) from error


def tensors(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result, and its numbers as tensors."""
    numbers = (leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor | bool | int | float))
    return [torch.as_tensor(leaf) for leaf in numbers]


def is_random_method(method: LoweredProgram) -> bool:
    """Return if a method draws random numbers, which differ from program to program."""
    delegated = (node for delegate in method.delegates.values() for node in delegate.region.graph.nodes)
    return is_random(method.program.graph_module) or any(map(draws, delegated))


def flat_arguments(ep: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the leaves of a call in the order of the program's inputs; tensors are copies."""
    named = reorder_kwargs(dict(kwargs), ep.call_spec.in_spec)
    return copies(pytree.tree_leaves((tuple(args), named)))


def copies(leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves of a call, the tensors copied: a method may write to its inputs."""
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


class GraphRunner(Interpreter):
    """An interpreter of a graph, and optionally of the bodies of its control flow; see `NodeRunner`.

    `call` runs an operator; None: as torch does.
    """

    def __init__(
        self,
        module: GraphModule,
        changed: Callable[[Node, Any], Any] = lambda node, result: result,
        *,
        with_bodies: bool = False,
        call: Callable[..., Any] | None = None,
        garbage_collect_values: bool = True,
    ) -> None:
        super().__init__(module, garbage_collect_values)
        self._changed, self._with_bodies, self._call = changed, with_bodies, call

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a constant, or a function that runs a body of control flow."""
        value = super().get_attr(target, args, kwargs)
        if not (self._with_bodies and isinstance(value, GraphModule)):
            return value
        return GraphRunner(value, self._changed, with_bodies=True, call=self._call).run

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator."""
        return (self._call or super().call_function)(target, args, kwargs)

    def run_node(self, n: Node) -> Any:
        """Run one node."""
        result = super().run_node(n)
        return self._changed(n, result) if n.op == "call_function" else result


class NodeRunner(GraphRunner):
    """An interpreter that runs an exported program node by node and leaves the buffers of the program unchanged.

    Args:
        ep: the program.
        changed: gets each node of a call and its result; returns the value that the nodes after it read.
        with_bodies: call it for the nodes in bodies of control flow too, at each execution. Their names may be those
            of other nodes.
    """

    def __init__(self, ep: ExportedProgram, changed: Callable[[Node, Any], Any], *, with_bodies: bool = False) -> None:
        module = ep.module()
        if any(map(writes_in_place, module.graph.nodes)):
            _copy_buffers(module)
        super().__init__(module, changed, with_bodies=with_bodies)

    def results(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors of the results; raises AccuracyError if torch cannot run the program."""
        try:
            with torch.no_grad():
                return tensors(self.run(*leaves, enable_io_processing=False))
        except Exception as error:  # an operator may raise anything
            raise no_reference("the program", error) from error


def written_buffers(ep: ExportedProgram) -> Sequence[str]:
    """Return the names of the buffers that a program may write; all of them if operators write in place."""
    signature = ep.graph_signature
    if any(map(writes_in_place, ep.graph.nodes)):
        return [*signature.buffers, *signature.lifted_tensor_constants]
    return list(signature.buffers_to_mutate.values())


def _copy_buffers(module: torch.nn.Module) -> None:
    """Replace the buffers of a module by copies, which the program may write; equal buffers stay one."""
    copied: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = copied.setdefault(id(buffer), buffer.clone())


class EagerRegion:
    """A region run by torch."""

    def __init__(self, region: Region) -> None:
        graph, _ = plain_graph(region, any_number=True)
        self.region = region
        self._module = GraphModule({}, graph)
        self._constants = list(region.constants.values())
        self._choices = {node: compare for node in graph.nodes if (compare := _choice_of(node)) is not None}

    def values(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the results of nodes that have one tensor, by name; raises AccuracyError if torch cannot run one."""
        return dict(_by_name(self._run(inputs, {})))

    def results(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs of the region; raises as `values` does."""
        values = self.values(inputs)
        return [values[node.name] for node in self.region.outputs]

    @property
    def choices(self) -> list[str]:
        """The result names of operators with several right answers."""
        return [name for node in self._choices for name in _results_of(node).values()]

    def compare(
        self, inputs: Sequence[torch.Tensor], results: Mapping[str, torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the outputs of the region and of torch, in forms that all right answers share.

        Where an operator has several right answers, the operators after it run in torch on the answer that is known.

        Args:
            inputs: the inputs of the region.
            results: The values of each node, the outputs, and the results of `choices` if they are known.

        Raises:
            AccuracyError: torch cannot run the region.
        """
        names = [node.name for node in self.region.outputs]
        known = {name: results[name] for name in self.choices if name in results}
        try:
            env = self._run(inputs, known)
        except AccuracyError:  # of indices that pick nothing, or the region itself
            values = self.values(inputs)
            return [results[name] for name in names], [values[name] for name in names]
        pairs = [pair for node, compare in self._choices.items() for pair in _pairs(node, compare, env, known)]
        values = dict(_by_name(env))
        pairs += [(results[name], values[name]) for name in names if name not in known]
        return [actual for actual, _ in pairs], [expected for _, expected in pairs]

    def run_changed(
        self, inputs: Sequence[torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the outputs of the region if all inputs and constants are changed; raises as `values` does."""
        values = dict(_by_name(self._run([change(t) for t in inputs], {}, [change(t) for t in self._constants])))
        return [values[node.name] for node in self.region.outputs]

    def continue_from(
        self,
        inputs: Sequence[torch.Tensor],
        known: Mapping[str, torch.Tensor],
        replacements: Mapping[str, torch.Tensor],
    ) -> list[torch.Tensor]:
        """Return the outputs of the region if some nodes have other results than in torch.

        Args:
            inputs: the inputs of the region.
            known: the result of `values` for these inputs.
            replacements: the other results, by node.
        """
        changed = set(replacements)
        for node in self._module.graph.nodes:
            if any(source.name in changed for source in node.all_input_nodes):
                changed.add(node.name)
        unchanged = {name: value for name, value in known.items() if name not in changed} | dict(replacements)
        values = dict(_by_name(self._run(inputs, unchanged))) | dict(replacements)
        return [values[node.name] for node in self.region.outputs]

    def _run(
        self,
        inputs: Sequence[torch.Tensor],
        known: Mapping[str, torch.Tensor],
        constants: Sequence[torch.Tensor] | None = None,
    ) -> Mapping[Node, Any]:
        runner = GraphRunner(self._module, call=call, garbage_collect_values=False)
        nodes = {n.name: n for n in self._module.graph.nodes}
        try:
            with torch.no_grad():
                before = {nodes[name]: value for name, value in known.items()}
                runner.run(*(constants or self._constants), *inputs, initial_env=before, enable_io_processing=False)
        except Exception as error:  # an operator may raise anything
            raise no_reference(f"partition {self.region.name}", error) from error
        return runner.env


@dataclass(slots=True)
class RegionTrial:
    """A runner for parts of a region on its backend, and for the nodes after them in torch, on recorded inputs.

    Args:
        region: the region of the partition.
        inputs: the recorded inputs of the region.
        compile: compiles a region for the backend.
        open: makes a delegate of a compiled region.
        known: the results of the region's nodes in torch, by name.
    """

    region: Region
    inputs: Sequence[torch.Tensor]
    compile: Callable[[Region], PreprocessResult]
    open: Callable[[PreprocessResult], Delegate]
    _eager: EagerRegion = field(init=False)
    known: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self._eager = EagerRegion(self.region)
        self.known = self._eager.values(self.inputs)

    def accuracy(self, units: Sequence[Unit]) -> Accuracy | None:
        """Return the error of the results if these units run on the backend; None if it cannot run them separately."""
        try:
            part_results = self.run(part_of(self.region, units))
        except Exception:  # a library that accepts the region may reject a part of it with any error
            return None
        expected = [self.known[node.name] for node in self.region.outputs]
        return difference(self._eager.continue_from(self.inputs, self.known, part_results), expected)

    def run(self, part: Region) -> dict[str, torch.Tensor]:
        """Run a part on its backend, on the values that torch computes for its inputs.

        Returns:
            the outputs of the part, by node.

        Raises:
            RegionRefused, RegionFailed: the library rejects the part.
            BackendError: the library fails at the call, or raises another exception.
        """
        expected = [self.known[n.name] for n in part.outputs]
        inputs = tuple(to_array(self.known[n.name], n.name) for n in part.inputs)
        outputs = tuple(np.empty_like(to_array(t, ""), order="C") for t in expected)
        delegate = self.open(self.compile(part))
        try:
            delegate.execute(inputs, outputs)
        finally:
            delegate.close()
        results = (to_tensor(a, dtype_of(t.dtype)) for a, t in zip(outputs, expected, strict=True))
        return dict(zip((n.name for n in part.outputs), results, strict=True))


def _choice_of(node: Node) -> Compare | None:
    return compare_of(node.target, arguments(node)) if node.op == "call_function" else None


def _results_of(node: Node) -> dict[int, str]:
    """Return the names of the nodes that have the results of an operator, by number."""
    picks = [user for user in node.users if user.target is operator.getitem]
    return {int(pick.args[1]): pick.name for pick in picks} if picks else {0: node.name}  # type: ignore[arg-type]


def _pairs(
    node: Node, compare: Compare, env: Mapping[Node, Any], known: Mapping[str, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the known results of an operator, and torch's on the same arguments, in forms that right answers share."""
    actual = {number: known[name] for number, name in _results_of(node).items() if name in known}
    if not actual:
        return
    args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
    with torch.no_grad():
        results = call(node.target, args, kwargs)
    expected = dict(enumerate(results if isinstance(results, tuple | list) else (results,)))
    yield from compare(map_arg(arguments(node), env.__getitem__), actual, expected)


def _by_name(env: Mapping[Node, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((node.name, value) for node, value in env.items() if isinstance(value, torch.Tensor))


def no_reference(where: str, error: Exception) -> AccuracyError:
    """Return the error of a reference that torch cannot run."""
    what = f"torch cannot run the reference: {one_line(error)}"
    return AccuracyError(what, where=where, remedy="lower without verify")
