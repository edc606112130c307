"""The shared AOT part of backends on ONNX Runtime: support from two tables, lowering by torch's ONNX exporter."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, ClassVar

from delegate_vendor_kit.special_values import MEANS, constants_of_zero, keeps_factor, keeps_zero
from delegate_vendor_kit.sums import sums_in_stages
from torch.fx import Node

from delegate.backend.aot import PreprocessResult, Region, RegionFailed, RegionRefused, Reproduction
from delegate.backend.exported import exported_program
from delegate.backend.inexact import collapse_sizes
from delegate.backend.lowering import LoweringTable, TableBackend
from delegate.edge.node import tensor
from delegate.verdict import Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.model import ExportedModel, require_graph, to_onnx, with_weights
from delegate_onnxruntime.onnx.aot.number_checks import find_cut_off_zero_points, find_large_biases
from delegate_onnxruntime.onnx.aot.translations import TRANSLATIONS, Operators
from delegate_onnxruntime.onnx.aot.translations.row import Translation
from delegate_onnxruntime.onnx.runtime.backend import OnnxRuntime
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel, pack, unpack
from delegate_onnxruntime.onnx.runtime.provider import Provider, one_line
from delegate_onnxruntime.onnx.runtime.session import add_weights, may_hold_code, new_session

_BUILT_IN = """import onnxruntime

options = onnxruntime.SessionOptions()
options.add_provider({provider!r}, {options})
"""
_IN_A_WHEEL = """import onnxruntime
import {module}

onnxruntime.register_execution_provider_library({provider!r}, {module}.get_library_path())
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == {provider!r}]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(devices, {options})
"""
_RUN = """

def run(inputs):
    session = onnxruntime.InferenceSession(HERE / "model.onnx", options, enable_fallback=0)
    for shape in {shapes}:
        inputs.append(np.array([s if isinstance(s, int) else inputs[s[0]].shape[s[1]] for s in shape], np.int64))
    return session.run(None, {{value.name: array for value, array in zip(session.get_inputs(), inputs)}})
"""


class OnnxBackend(TableBackend):
    """A backend on one provider of ONNX Runtime.

    It supports an operator if `translations.TRANSLATIONS` has a row for it, and `operators` has every ONNX operator of
    that row. These rows are its `table`. The provider, its `library`, decides on each region: nodes that it would leave
    to the CPU are planned on other backends.
    """

    runtime: ClassVar[type[OnnxRuntime]]
    operators: Operators
    table: LoweringTable[Translation]
    wheel: str  # the distribution of the provider's library, whose module has its name with "_"; empty if built in
    own_paths: ClassVar[Mapping[str, str]] = MappingProxyType({})  # provider's option -> a call in that module
    space: ClassVar[str] = ""  # of `PreprocessResult`
    wrong_if_empty: ClassVar[Set[str] | None] = MEANS  # see `collapse_sizes`

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """Return the ONNX operators of an operator, the dtypes of the provider, and the conditions of the row."""
        row, conditions = cls.table.get(op), super().conditions(op)
        if row is None or conditions is None:
            return None
        return (f"As ONNX's {', '.join((*row.lower.onnx, *row.lower.between))}.", *conditions)

    def no_row(self, op: str) -> Verdict:
        if op not in TRANSLATIONS:
            return super().no_row(op)
        missing = sorted(TRANSLATIONS[op][0].lower.needs - self.operators.keys())
        return no(Reason.OPERATOR, f"{self.library} does not support ONNX's {', '.join(missing)}")

    def check(self, node: Node) -> Verdict:
        return super().check(node) and keeps_zero(node) and keeps_factor(node)

    def preprocess(self, region: Region) -> PreprocessResult:
        refused = find_large_biases(region) | find_cut_off_zero_points(region) | constants_of_zero(region)
        if refused := refused | collapse_sizes(region, self.wrong_if_empty):
            raise RegionRefused(refused)
        exported = to_onnx(exported_program(sums_in_stages(region)), self.table)
        if may_hold_code(exported.model.graph):  # the runtime part would refuse it
            raise RegionFailed(
                "the bytes of a constant contain EPContext, which marks machine code in ONNX: change the constant"
            )
        return self.compile(exported, region)

    def reproduction(self, artifact: PreprocessResult) -> Reproduction:
        data = [memoryview(part) for part in artifact.data]
        model = unpack(memoryview(artifact.blob), data, artifact.compile_specs)
        code = self._session_code() + _RUN.format(shapes=model.shapes)
        return Reproduction({"model.onnx": with_weights(model)}, code, ("onnxruntime", *filter(None, [self.wheel])))

    def _session_code(self) -> str:
        """Return Python that creates `options`, a SessionOptions on the provider."""
        module = self.wheel.replace("-", "_")
        options = self.runtime.provider_options(self._specs())
        entries = [f"{name!r}: {value!r}" for name, value in options.items() if name not in self.own_paths]
        entries += [f"{name!r}: str({module}.{call})" for name, call in self.own_paths.items()]
        code = _IN_A_WHEEL if self.wheel else _BUILT_IN
        return code.format(provider=self.library, module=module, options="{" + ", ".join(entries) + "}")

    def pack(
        self, model: OnnxModel, notes: Sequence[str], specs: Mapping[str, Any] = MappingProxyType({})
    ) -> PreprocessResult:
        """Return the artifact of a model, with further compile specs."""
        blob, own, data = pack(model)
        return PreprocessResult(blob, {**own, **self._specs(), **specs}, tuple(notes), self.space, data)

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if the specs of a cached artifact do not fit its region and the options."""
        artifact.require_specs(self._specs())
        if artifact.space != self.space:
            raise ValueError(f"{artifact.space!r} is not the memory of its device")
        model = unpack(memoryview(artifact.blob), [memoryview(part) for part in artifact.data], artifact.compile_specs)
        require_graph(model)
        if (len(model.inputs) - len(model.shapes), len(model.outputs)) != (len(region.inputs), len(region.outputs)):
            raise ValueError(f"the inputs or outputs of its model differ from those of {region.name}")
        for index, dim in (size for shape in model.shapes for size in shape if not isinstance(size, int)):
            if not (0 <= index < len(region.inputs) and 0 <= dim < tensor(region.inputs[index]).dim()):
                raise ValueError(f"its model requires dimension {dim} of input {index}, which does not exist")

    def refuse_left_to_cpu(self, exported: ExportedModel, settings: Any = None) -> None:
        """Raise RegionRefused if the library would leave any node to the CPU.

        Args:
            exported: the model.
            settings: options of the session that is opened for the query; None for the backend's options.
        """
        left = left_to_cpu(exported, settings or self.settings(), self.provider())
        if left:
            raise RegionRefused(left)

    def provider(self) -> Provider:
        """Return the provider; raise BackendUnavailable if it is absent."""
        return self.runtime.provider(self._specs())

    def settings(self) -> Any:
        """Return SessionOptions on the provider, from the options of the backend."""
        return self.runtime.settings(self._specs())

    @abstractmethod
    def _specs(self) -> dict[str, Any]:
        """Return the compile specs that only depend on the options."""

    @abstractmethod
    def compile(self, exported: ExportedModel, region: Region) -> PreprocessResult:
        """Return the blob of a model; raises RegionRefused unless the provider supports all of it."""


def left_to_cpu(exported: ExportedModel, settings: Any, provider: Provider) -> Mapping[str, str]:
    """Return the nodes that a provider does not support, each with a reason; empty if it supports all.

    Args:
        exported: the model.
        settings: options of a session on the provider, from `session_options`; used once.
        provider: the provider.

    Raises:
        RegionFailed: the library does not load the model at all, or leaves only nodes of unknown origin.
    """
    name = provider.name
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    add_weights(settings, exported.model)
    try:
        with provider.lock:
            session = new_session(exported.model.graph, settings)
            parts = session.get_provider_graph_assignment_info()
            del session
    except Exception as error:  # the bindings raise classes of their own that share no base but Exception
        raise RegionFailed(f"{name} cannot load the model: {one_line(error)}") from error
    left = [node for part in parts if part.ep_name != name for node in part.get_nodes()]
    reasons = {
        source: f"{name} does not support this {node.op_type}"
        for node in left
        for source in exported.sources.get(node.name, ())
    }
    if left and not reasons:
        operators = ", ".join(sorted({node.op_type for node in left}))
        raise RegionFailed(f"{name} leaves {operators} to the CPU")
    return reasons
