"""Tests of a backend against the requirements of the interface."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import delegate
from delegate.backend.aot import Region, RegionFailed, RegionRefused
from delegate.edge.export import to_edge
from delegate.edge.node import describe, is_compute
from delegate.edge.passes.pipeline import optimize
from delegate.edge.program import EdgeProgram
from delegate.edge.torch_private import pytree
from delegate.errors import BackendFailed
from delegate.partitioner.extraction import plan_regions
from delegate.partitioner.planning import plan
from delegate.plugins import IN_PROCESS, PluginState
from delegate.program.file import load, serialize
from delegate.registry import default_registry
from delegate.runtime.delegates import open_blob
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.platform import Platform
from delegate.selection import Selection, select
from delegate.verdict import Reason, Verdict, no
from delegate_testing.cases import AWKWARD, Case
from delegate_testing.comparison import assert_same
from delegate_testing.generated.check import FAMILIES, comparison_property

# Code for separate processes: import the info; run a saved program; open corrupt blobs.
_STATE = """
import sys
from delegate.registry import Registry
state = Registry().state(sys.argv[1])
heavy = sorted({"torch", "pydantic", "rich", "yaml"} & set(sys.modules))
print(state.detail or f"with {heavy} imported" if heavy or state.detail else "ok")
"""
_RUN = """
import sys
import numpy as np
import delegate
program = delegate.load(sys.argv[1], trust_code=True)
inputs = np.load(sys.argv[2], allow_pickle=False)
results = program.method("forward").run([inputs[name] for name in inputs.files])
np.savez(sys.argv[3], *results)
assert "torch" not in sys.modules, "the runtime part imports torch"
"""
_OPEN_CORRUPT = """
import json, sys
from delegate.registry import default_registry
runtime = default_registry().runtime(sys.argv[1])()
blob, specs = open(sys.argv[2], "rb").read(), json.loads(sys.argv[3])
altered = (blob[:i] + bytes([blob[i] ^ 0xFF]) + blob[i + 1 :] for i in range(0, len(blob), max(1, len(blob) // 40)))
for corrupt in (b"", b"\\0" * 64, b"nonsense" * 64, blob[: len(blob) // 2], blob + b"more", *altered):
    try:
        runtime.init(memoryview(corrupt), specs).close()
    except Exception as error:
        print(type(error).__name__, error)
"""

NO_VERDICT = no(Reason.EXCLUDED, "the backend was not asked")
_FILES: dict[Hashable, bytes] = {}  # test class, AOT part and id of a case -> its program file


class BackendTests:
    """Tests of an installed or registered backend, to subclass in a test file under a name that pytest collects.

    Attributes:
        backend: the name of the backend.
        cases: modules that the backend runs at least in part, by a name for the test.
        options: the options of the backend.
        tolerance: the largest absolute error, relative to the largest absolute value.
        exceptions: the awkward cases and families of generated cases that the device cannot compute correctly by
            nature -> the reason.
        examples: the number of generated cases per family.
    """

    backend: ClassVar[str]
    cases: ClassVar[Mapping[str, Case]]
    options: ClassVar[Mapping[str, Any]] = {}
    tolerance: ClassVar[float] = 1e-4
    exceptions: ClassVar[Mapping[str, str]] = {}
    examples: ClassVar[int] = 10

    def another_version(self, blob: bytes) -> bytes | None:
        """Return a blob as another version of the backend would write it; None without another version.

        `init` must refuse it. The default changes the version in the header, if the runtime part has a `blob_format`.
        """
        blob_format = default_registry().runtime(self.backend).blob_format
        return None if blob_format is None else blob_format.with_version(blob, blob_format.version + 1)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize the tests with the cases of the backend, the awkward cases and the generated families."""
        for name, cases in (("case", self.cases), ("awkward", AWKWARD)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, list(cases.values()), ids=list(cases))
        if "static" in metafunc.fixturenames:
            cases = {name: case for name, case in self.cases.items() if case.dynamic_shapes is None}
            metafunc.parametrize("static", list(cases.values()), ids=list(cases))
        if "family" in metafunc.fixturenames:
            metafunc.parametrize("family", list(FAMILIES))

    @pytest.fixture(autouse=True)
    def _available(self) -> None:
        state = default_registry().state(self.backend)
        if state.state in (PluginState.UNAVAILABLE, PluginState.BLOCKED):
            pytest.skip(f"{state.detail}: {state.remedy}")
        assert state.state is PluginState.OK, state.detail

    def test_its_info_is_cheap_and_needs_no_torch(self) -> None:
        self._require_installed()
        answer = _run_process(_STATE, self.backend).strip()
        assert answer == "ok", f"its info must be cheap to import and report the state ok, but it reports: {answer}"

    def test_its_options_have_a_schema(self) -> None:
        schema = default_registry().aot(self.backend).Options.model_json_schema()
        assert schema["type"] == "object", f"options must be an object, not {schema['type']!r}"
        assert schema.get("additionalProperties") is False, "unknown options must be rejected"

    def test_checks_answer_with_reasons(self, case: Case) -> None:
        self._check(case)

    def test_checks_of_whatever_may_come(self, awkward: Case) -> None:
        self._check(awkward)

    def test_something_of_it_runs_there(self, case: Case) -> None:
        report = self._lower(case).report
        assert report.partitions, f"{self.backend} supports no node of the module:\n{report}"

    def test_two_plans_are_the_same(self, case: Case) -> None:
        first, second = (self._lower(case).report for _ in range(2))
        changed = [a.name for a, b in zip(first.nodes, second.nodes, strict=True) if a != b]
        assert not changed, f"two plans of one module have other verdicts or backends for: {', '.join(changed)}"
        partitions = [[list(p.nodes) for p in report.partitions] for report in (first, second)]
        assert partitions[0] == partitions[1], f"two plans of one module have other partitions: {partitions}"

    def test_answers_are_those_of_eager(self, case: Case) -> None:
        self._compare(case)

    def test_answers_to_whatever_may_come(self, awkward: Case) -> None:
        if reason := next((why for name, why in self.exceptions.items() if AWKWARD.get(name) is awkward), ""):
            pytest.skip(reason)
        self._compare(awkward)

    def test_dynamic_sizes(self, static: Case) -> None:
        """Check that the backend accepts with a dynamic first dimension what it accepts at fixed sizes.

        A refusal whose reason is `Reason.DYNAMIC_SHAPE` is allowed, and reported.
        """
        case = static.with_dynamic_batch()
        if case is None:
            pytest.skip("the module fixes the size of its first dimension")
        fixed = self._lower(static).report.nodes
        accepted = {n.op for n in fixed if n.verdicts.get(self.backend, NO_VERDICT)}
        nodes = self._lower(case).report.nodes
        verdicts = {n.op: v for n in nodes if not (v := n.verdicts.get(self.backend, NO_VERDICT)) and n.op in accepted}
        wrong = {op: v for op, v in verdicts.items() if v.reason is not Reason.DYNAMIC_SHAPE}
        assert not wrong, (
            "it accepts these operators at fixed sizes only, for another reason than a dynamic shape: "
            + "; ".join(f"{op}: {v}" for op, v in wrong.items())
        )
        self._compare(case)
        if verdicts:
            pytest.skip(f"fixed sizes only: {'; '.join(f'{op}: {v}' for op, v in verdicts.items())}")

    def test_generated_cases(self, family: str) -> None:
        """Compare operators with generated attributes, shapes and strides, and generated programs, with eager."""
        if reason := self.exceptions.get(family):
            pytest.skip(reason)
        config = {**self._config, "cache": {"enabled": False}}
        comparison_property(family, config, self.tolerance, self.examples, delegated_only=True)()

    def test_all_outputs_are_filled(self, case: Case) -> None:
        """Check that earlier contents of memory do not change results, and that inputs are not written to."""
        data, results = self._serialize(case), []
        for byte in (0x00, 0x5A, 0xFF):
            arrays = arrays_of(case.args)
            for array in arrays:
                array.flags.writeable = False
            with LoadedProgram(
                load(data), platform=Platform(allocate=_filling_allocator(byte)), trust_code=True
            ) as program:
                results.append(program.method("forward").run(arrays))
            for array, original in zip(arrays, arrays_of(case.args), strict=True):
                assert np.array_equal(array, original, equal_nan=array.dtype.kind in "fc"), "a call changed an input"
        for other in results[1:]:
            _require_same_bits(other, results[0], "an output is not filled completely, or the second run differs")

    def test_calls_keep_no_arrays(self, case: Case) -> None:
        """Check that a call neither writes to the results of earlier calls, nor reads their inputs."""
        with delegate.load(self._serialize(case), trust_code=True) as program:
            run = program.method("forward").run
            first, second = arrays_of(case.args), [_scale(a, 0.5) for a in arrays_of(case.args)]
            results = run(first)
            before, expected = [r.copy() for r in results], [r.copy() for r in run(second)]
            _require_same_bits(
                results,
                before,
                "execute() writes to outputs of an earlier call: fill `outputs` of this call, and keep none of them",
            )
            for array in first:
                array[...] = 0
            _require_same_bits(
                run(second),
                expected,
                "execute() reads inputs of an earlier call: read `inputs` of this call, and keep none of them",
            )

    def test_weights_are_left_as_they_are(self, case: Case) -> None:
        """Check that `preprocess` leaves the weights unchanged: the fallback and other backends use the same ones."""
        selection, cut = self._regions(case)
        for region in cut.values():
            before = _bytes(region.constants.values())
            with suppress(RegionRefused, RegionFailed):  # a backend may reject nodes
                selection.backends[self.backend].preprocess(region)
            assert _bytes(region.constants.values()) == before, "preprocess() changed a weight: work on a copy"

    def test_contexts_and_threads(self, case: Case) -> None:
        """Run contexts concurrently. Each thread has its own inputs, which reveals mixed-up data."""
        with delegate.load(self._serialize(case), trust_code=True) as program:
            inputs = [[_scale(a, by) for a in arrays_of(case.args)] for by in (1.0, 0.75, 0.5, 0.25)]
            expected = [program.method("forward").run(arrays) for arrays in inputs]
            contexts = [program.context() for _ in inputs]
            with ThreadPoolExecutor(4) as pool:
                jobs = list(zip(contexts, inputs, expected, strict=True)) * 5
                runs = [(pool.submit(context.method("forward").run, arrays), alone) for context, arrays, alone in jobs]
            for number, (run, alone) in enumerate(runs):
                what = f"call {number} of {len(runs)} in 4 threads, each with its context, differs from a call alone"
                _require_same_bits(run.result(), alone, what)

    def test_it_closes_and_opens_again(self, case: Case, tmp_path: Path) -> None:
        """Load a program repeatedly from a mapped file, whose blobs are read-only."""
        (tmp_path / "case.dlg").write_bytes(self._serialize(case))
        for _ in range(3):
            with delegate.load(tmp_path / "case.dlg", trust_code=True) as program:
                program.method("forward").run(arrays_of(case.args))

    def test_several_at_a_time(self, case: Case) -> None:
        """Run two programs in two threads. Closing one must not affect the other."""
        data, arrays = self._serialize(case), arrays_of(case.args)
        first, second = (delegate.load(data, trust_code=True) for _ in range(2))
        with second:
            expected = second.method("forward").run(arrays)
            with first, ThreadPoolExecutor(2) as pool:
                for run in [pool.submit(p.method("forward").run, arrays) for p in (first, second) * 5]:
                    _require_same_bits(run.result(), expected, "two programs in two threads differ from one alone")
            results = second.method("forward").run(arrays)
            _require_same_bits(results, expected, "a program differs after another program was closed")

    def test_kernels_run_every_second_node(self, case: Case) -> None:
        """Pin every second node to the kernels: many small partitions then exchange values with kernels."""
        taken = [n.name for n in self._lower(case).report.nodes if n.backend == self.backend]
        pins = dict.fromkeys(taken[::2] if len(taken) > 1 else [], "portable")
        self._compare(case, {**self._config, "partitioning": {"node_pins": pins, "min_partition_size": 0}})

    def test_it_runs_without_torch(self, case: Case, tmp_path: Path) -> None:
        self._require_installed()
        (tmp_path / "case.dlg").write_bytes(self._serialize(case))
        np.savez(tmp_path / "inputs.npz", *arrays_of(case.args))
        _run_process(_RUN, *(str(tmp_path / name) for name in ("case.dlg", "inputs.npz", "results.npz")))
        with np.load(tmp_path / "results.npz") as saved:
            self._assert_same([saved[n] for n in saved.files], case, case.args)

    def test_corrupt_blobs_do_no_harm(self, case: Case, tmp_path: Path) -> None:
        """Open corrupt blobs; any exception is allowed, but a crash of the process is not."""
        self._require_installed()
        program = load(self._serialize(case))
        for spec in program.delegates:
            if not default_registry().runtime(self.backend)().runs_code(spec.compile_specs):
                (tmp_path / "blob").write_bytes(program.segments[spec.segment])
                _run_process(_OPEN_CORRUPT, self.backend, str(tmp_path / "blob"), json.dumps(spec.compile_specs))

    def test_blobs_of_another_version_are_refused(self, case: Case) -> None:
        program = load(self._serialize(case))
        assert program.delegates, "no node of the module is delegated"
        runtime = default_registry().runtime(self.backend)()
        for spec in program.delegates:
            blob, *data = (bytes(program.segments[i]) for i in (spec.segment, *spec.data))
            if (other := self.another_version(blob)) is None:
                pytest.skip(
                    "its runtime part has no blob_format: set it, or override another_version in a test class, "
                    "which `delegate check-backend --tests FILE` uses too"
                )
            assert other != blob, "another_version() returned the blob itself: it must have another version"
            with pytest.raises(BackendFailed):
                open_blob(
                    runtime, memoryview(other), [memoryview(d) for d in data], spec.compile_specs, trust_code=True
                )

    def _require_installed(self) -> None:
        if default_registry().state(self.backend).owner == IN_PROCESS:
            pytest.skip("the backend is registered only in this process, and another process cannot find it")

    @cached_property
    def _config(self) -> dict[str, Any]:
        return {"backends": [{"name": self.backend, "options": dict(self.options)}]}

    def _lower(self, case: Case, config: Mapping[str, Any] | None = None) -> delegate.CompiledProgram:
        return delegate.to_backend(case.export(), config=config or self._config)

    def _serialize(self, case: Case) -> bytes:
        """Return the file of a case, which is lowered once for all tests of the class."""
        key = (type(self), default_registry().aot(self.backend), id(case))
        if key not in _FILES:
            _FILES[key] = serialize(self._lower(case).program)
        return _FILES[key]

    def _regions(self, case: Case) -> tuple[Selection, dict[str, Region]]:
        selection, edge = self._edge(case)
        planned = plan(edge, selection.partitioners, selection.backends, selection.rules)
        return selection, {c.region.name: c.region for c in plan_regions(planned, selection.backends)}

    def _edge(self, case: Case) -> tuple[Selection, EdgeProgram]:
        """Return the edge program of a case; operators that the backend preserves are not decomposed."""
        selection = select(None, self._config, default_registry())
        preserved = selection.backends[self.backend].preserve_ops
        return selection, optimize(to_edge(case.export(), preserve_ops=preserved))

    def _check(self, case: Case) -> None:
        selection, edge = self._edge(case)
        before, metadata = str(edge.graph), [dict(n.meta) for n in edge.graph.nodes]
        for node in filter(is_compute, edge.graph.nodes):
            first, second = (selection.backends[self.backend].check(node) for _ in range(2))
            assert isinstance(first, Verdict), f"check() returned {first!r} (node {describe(node)})"
            assert first == second, f"check() gave different answers in two calls (node {describe(node)})"
            assert first or first.message, f"check() rejected a node without a reason (node {describe(node)})"
        assert str(edge.graph) == before, "check() changed the graph"
        for node, meta in zip(edge.graph.nodes, metadata, strict=True):
            same = node.meta.keys() == meta.keys() and all(node.meta[key] is value for key, value in meta.items())
            assert same, f"check() changed the metadata of a node ({describe(node)})"

    def _compare(self, case: Case, config: Mapping[str, Any] | None = None) -> None:
        program = self._lower(case, config)
        with delegate.load(serialize(program.program), trust_code=True) as loaded:
            for args in (case.args, *case.others):
                self._assert_same(loaded.method("forward").run(arrays_of(args)), case, args)

    def _assert_same(self, results: list[Any], case: Case, args: tuple[Any, ...]) -> None:
        with torch.no_grad():
            expected = case.module(*args)
        leaves = [leaf.detach() for leaf in pytree.tree_leaves(expected) if isinstance(leaf, torch.Tensor)]
        assert_same(results, leaves, self.tolerance if case.tolerance is None else case.tolerance)


def arrays_of(values: Any) -> list[Any]:
    """Return copies of a pytree's tensors as arrays; bfloat16 as its bits."""
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    raw = [leaf.detach().clone().contiguous() for leaf in leaves]
    return [(t.view(torch.uint16) if t.dtype is torch.bfloat16 else t).numpy() for t in raw]


def _require_same_bits(results: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Raise AssertionError, with the first different element, unless results have the bits of the expected arrays."""
    for number, (one, other) in enumerate(zip(results, expected, strict=True)):
        if one.tobytes() == other.tobytes():
            continue
        same = [a.tobytes() == b.tobytes() for a, b in zip(one.ravel(), other.ravel(), strict=True)]
        at = [int(i) for i in np.unravel_index(same.index(False), one.shape)]
        elements = f"{same.count(False)} of {len(same)} elements, the first at {at}"
        raise AssertionError(f"{what}: result {number}, {elements}: {one[tuple(at)]} instead of {other[tuple(at)]}")


def _filling_allocator(byte: int) -> Any:
    """Return an allocator of memory filled with one byte and aligned to 64 bytes."""

    def allocate(size: int) -> Any:
        raw = np.full(size + 64, byte, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size]

    return allocate


def _scale(array: Any, by: float) -> Any:
    """Return an array of floats multiplied by a factor, other arrays unchanged."""
    return (array * array.dtype.type(by)) if array.dtype.kind == "f" else array


def _bytes(tensors: Iterable[torch.Tensor]) -> list[bytes]:
    """Return the elements of tensors."""
    return [arrays_of(t)[0].tobytes() for t in tensors]


def _run_process(code: str, *args: str) -> str:
    """Run code in a separate process and return its output."""
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"the process ended with exit code {done.returncode}:\n{done.stderr[-3000:]}"
    return done.stdout
