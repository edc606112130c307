"""The runtime part: a session on a QNN context binary, if it was compiled for the chip of this machine.

The operators of a binary are reported from QNN's own profile. QNN writes a row of CSV per operator of a call, in
cycles, and rows for the whole call in cycles and in microseconds.
https://onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html, option profiling_level
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from delegate.errors import BackendFailed, BackendUnavailable
from delegate.runtime.backend import Delegate, ReportOperator
from delegate_onnxruntime.dsp.info import INSTALL, PROVIDER, provider, versions
from delegate_onnxruntime.dsp.targets import Target, local_target
from delegate_onnxruntime.onnx.runtime.backend import OnnxRuntime
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel
from delegate_onnxruntime.onnx.runtime.provider import Provider
from delegate_onnxruntime.onnx.runtime.session import OnnxDelegate, OpenSession, open_session, session_options

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
_TIME = "Accelerator (execute) time"
_CYCLES = f"{_TIME} (cycles)"


class DspRuntime(OnnxRuntime):
    """The runtime part, which opens context binaries."""

    load_options: ClassVar = {"rpc_control_latency": int}

    @classmethod
    def provider(cls, specs: Mapping[str, Any]) -> Provider:
        return provider()

    @classmethod
    def provider_options(cls, specs: Mapping[str, Any]) -> dict[str, str]:
        import onnxruntime_qnn

        _, arch, model = specs["target"]
        options = {name: specs[option] for option, name in _NAMES.items() if specs.get(option)}  # 0, false: QNN decides
        return {
            "backend_path": str(onnxruntime_qnn.get_qnn_htp_path()),
            "htp_arch": str(arch),
            "soc_model": str(model),
            "enable_htp_fp16_precision": "1",
            "offload_graph_io_quantization": "0",  # else the first and last q/dq are for the CPU
            **{name: value if isinstance(value, str) else str(int(value)) for name, value in options.items()},
        }

    @classmethod
    def settings(cls, specs: Mapping[str, Any], graph: bytes = b"", profile: str = "") -> Any:
        """Return the session options for compile specs; the host has one thread, because the HTP does all work.

        `profile` is the path of a file for QNN's profile, if that is not empty.
        """
        recorded = {"profiling_level": "detailed", "profiling_file_path": profile} if profile else {}
        return session_options(cls.provider(specs), cls.provider_options(specs) | recorded, threads=1)

    @classmethod
    def open(cls, model: OnnxModel, specs: Mapping[str, Any], *, profile: str = "") -> Any:
        return open_session(model, cls.settings(specs, profile=profile), cls.provider(specs), is_code=True)

    def make_delegate(self, open_: Any, model: OnnxModel, provider: Provider) -> Delegate:
        return _DspDelegate(open_, model, provider)

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
        try:
            return super().init_with_data(blob, (), compile_specs)
        except BackendFailed as error:
            compiled_by, installed = compile_specs.get("versions", {}), versions()
            if compiled_by == installed:
                raise
            was, now = _name_versions(compiled_by), _name_versions(installed)
            raise BackendFailed(
                f"it was compiled by {was}, but {now} is installed: {error.what}",
                where=error.where,
                remedy="lower it again here, or install the version that compiled it",
            ) from error


def _name_versions(libraries: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in libraries.items()) or "unknown versions"


class _DspDelegate(OnnxDelegate):
    """A context binary, whose operators QNN can report."""

    def profiled(self, report: ReportOperator) -> Delegate | None:
        return _ProfiledDelegate(self._open, self._model, self._provider, report)


class _ProfiledDelegate(OnnxDelegate):
    """A context binary that reports its operators after each call."""

    def __init__(self, open_: OpenSession, model: OnnxModel, provider: Provider, report: ReportOperator) -> None:
        self._folder = TemporaryDirectory(prefix="delegate-profile-")
        self._path, self._position = os.path.join(self._folder.name, "qnn.csv"), 0
        self._calls = _Calls(report)
        super().__init__(partial(open_, profile=self._path), model, provider)

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        start = time.perf_counter_ns()
        super().execute(inputs, outputs)
        self._calls.add(csv.reader(self._new_lines()), start)

    def _new_lines(self) -> list[str]:
        """Return the lines that QNN has written since the last call; a new session may write the file anew."""
        try:
            with open(self._path, encoding="utf-8", errors="replace", newline="") as file:
                if self._position <= os.path.getsize(self._path):
                    file.seek(self._position)
                text = file.read()
                self._position = file.tell()
        except FileNotFoundError:  # this version of QNN writes none
            return []
        return text.splitlines()

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


class _Calls:
    """A reader of a profile's rows, which reports the operators at the end of each call."""

    def __init__(self, report: ReportOperator) -> None:
        self._report = report
        self._total = 0
        self._operators: list[tuple[str, str, int]] = []

    def add(self, rows: Iterable[Sequence[str]], start: int) -> None:
        """Add rows of a call that began at `start`.

        Args:
            rows: timestamp, kind, value, unit, source, level, and what the value measures.
            start: nanoseconds.
        """
        for row in rows:
            if len(row) != 7 or not row[2].isdigit():  # the header
                continue
            kind, value, unit, what = row[1], int(row[2]), row[3], row[6]
            if kind == "NODE" and unit == "CYCLES":
                name, _, number = what.removesuffix(" (cycles)").rpartition("OpId_")
                self._operators.append((f"OpId_{number}", name.rstrip(": "), value))
            elif what == _CYCLES:
                self._total = value
            elif what == _TIME and unit == "US":
                for number, name, cycles in self._operators:
                    duration = value * 1000 * cycles // max(self._total, 1)
                    self._report(number, name, start, duration)
                    start += duration
                self._operators.clear()
