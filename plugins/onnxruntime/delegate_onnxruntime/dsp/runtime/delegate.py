"""The runtime part: a session on a QNN context binary, if it was compiled for the chip of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from delegate.errors import BackendFailed, BackendUnavailable
from delegate.runtime.backend import BackendRuntime, Delegate
from delegate_onnxruntime.dsp.info import INSTALL, PROVIDER, provider, versions
from delegate_onnxruntime.dsp.runtime.profiled import DspDelegate
from delegate_onnxruntime.dsp.runtime.targets import Target, local_target
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel, unpack
from delegate_onnxruntime.onnx.runtime.session import open_session, session_options

# Option of the backend -> its name in QNN's provider.
_NAMES: Mapping[str, str] = {
    "performance_mode": "htp_performance_mode",
    "optimization_level": "htp_graph_finalization_optimization_mode",
    "vtcm_mb": "vtcm_mb",
    "priority": "qnn_context_priority",
    "rpc_control_latency": "rpc_control_latency",
    "clamp_overflow": "enable_htp_fp16_clamp_overflow",
}
OPTIONS = tuple(_NAMES)


def backend_options(specs: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of QNN's provider for the compile specs of a delegate."""
    import onnxruntime_qnn

    _, arch, model = specs["target"]
    options = {name: specs[option] for option, name in _NAMES.items() if specs.get(option)}  # 0 and false: QNN decides
    return {
        "backend_path": str(onnxruntime_qnn.get_qnn_htp_path()),
        "htp_arch": str(arch),
        "soc_model": str(model),
        "enable_htp_fp16_precision": "1",
        "offload_graph_io_quantization": "0",  # else the first and last q/dq are for the CPU
        **{name: value if isinstance(value, str) else str(int(value)) for name, value in options.items()},
    }


def settings(specs: Mapping[str, Any], profile: str = "") -> Any:
    """Return the session options for compile specs; the host has one thread, because the HTP does all work.

    `profile` is the path of a file for QNN's profile, if that is not empty.
    """
    recorded = {"profiling_level": "detailed", "profiling_file_path": profile} if profile else {}
    return session_options(provider(), backend_options(specs) | recorded, threads=1)


class DspRuntime(BackendRuntime):
    """The runtime part, which opens context binaries."""

    load_options: ClassVar = {"rpc_control_latency": int}

    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        """Return true for all specs: a context binary is code of the DSP, or of the CPU in the emulator."""
        return True

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        if not provider().devices:
            raise BackendUnavailable(f"{PROVIDER} finds no supported device", remedy=INSTALL)
        target, here = Target(*compile_specs["target"]), local_target()
        if here is not None and here.htp_arch != target.htp_arch:
            raise BackendFailed(
                f"it was compiled for {target}, but this machine is a {here}",
                remedy=f"lower it again with soc: {here.soc}",
            )
        model = unpack(blob, (), compile_specs)
        try:
            return DspDelegate(partial(_open, model, compile_specs), model, provider())
        except BackendFailed as error:
            compiled_by, installed = compile_specs.get("versions", {}), versions()
            if compiled_by == installed:
                raise
            raise BackendFailed(
                f"it was compiled by {_named(compiled_by)}, but {_named(installed)} is installed: {error.what}",
                where=error.where,
                remedy="lower it again here, or install the version that compiled it",
            ) from error


def _open(model: OnnxModel, specs: Mapping[str, Any], *, profile: str = "") -> Any:
    return open_session(model, settings(specs, profile), provider(), is_code=True)


def _named(libraries: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in libraries.items()) or "unknown versions"
