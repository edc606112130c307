"""Placement by what nodes of a Ray cluster measure: a local one, whose nodes carry backends as resources."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram

import delegate
from delegate.errors import ConfigError
from delegate.placement.runtime.elimination import fixed_rounds, measure_rounds
from delegate.placement.runtime.trials import Trial
from delegate.testing import assert_same
from tests.support.placing import Block, killed_midway

pytest.importorskip("ray")
import ray
from delegate_ray.runtime.measuring import RayRunnerFactory

MODEL = Block().eval()
X = torch.randn(4, 16)
TWO = {
    "backends": [{"name": f"xnnpack:{name}", "options": {"threads": n}} for n, name in enumerate(("one", "two"), 1)],
    "placement": {"policy": "measured", "budget": 300, "objective": "file size"},  # few actors: each takes seconds
}


@pytest.fixture(scope="module")
def exported() -> ExportedProgram:
    return torch.export.export(MODEL, (X,))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A head that carries nothing, a node that carries the backend, and one that has an instance of it alone."""
    from ray.cluster_utils import Cluster

    plugin = Path(__file__).parents[1]
    paths = (str(plugin.parents[1]), str(plugin), os.environ.get("PYTHONPATH", ""))
    changed = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(paths)}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1, resources={"xnnpack": 1})
        cluster.add_node(num_cpus=1, resources={"openvino:gpu": 1})
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def test_candidates_are_measured_where_their_backend_is(exported: ExportedProgram, address: str) -> None:
    program = delegate.to_backend(exported, config=TWO, placement=delegate.Measured(cluster=address))
    (placement,) = program.report.placements
    rows = {p.name: p for p in placement.plans}
    assert set(rows) >= {"xnnpack:one", "xnnpack:two"}
    assert all(p.cost > 0 and p.sqnr_db > 80 and not p.why for p in rows.values())
    assert placement.machine
    assert {n.backend.partition(":")[0] for n in program.report.nodes} == {"xnnpack"}
    assert_same(program(X), MODEL(X))
    assert not ray.is_initialized()  # the connection was this lowering's


def test_what_no_node_carries_is_out(exported: ExportedProgram, address: str) -> None:
    ray.init(address=address, log_to_driver=False)
    try:
        factory = RayRunnerFactory([X.numpy()], None, 20.0)
        program = delegate.to_backend(exported, "xnnpack").program
        spec = program.delegates[0]
        other_backend = program._replace(delegates=(spec._replace(backend="openvino"),))
        both = program._replace(delegates=(spec, spec._replace(backend="openvino:gpu")))
        trials = [Trial("a", program, "forward"), Trial("b", other_backend, "forward"), Trial("c", both, "forward")]
        records = measure_rounds(trials, factory, fixed_rounds(1), lambda: True)
        assert (
            delegate.to_backend(exported, config=TWO, placement=delegate.Measured(cluster="what is connected counts"))
            .report.placements[0]
            .machine
        )
    finally:
        ray.shutdown()
    assert (len(records["a"].rounds), records["a"].failure) == (1, "")
    assert records["b"].failure == "no node of the cluster has openvino as resources"
    assert records["c"].failure == "no node of the cluster has openvino:gpu and xnnpack as resources"


def test_a_worker_that_dies_midway_is_out_and_the_others_go_on(exported: ExportedProgram, address: str) -> None:
    ray.init(address=address, log_to_driver=False)
    try:
        factory = RayRunnerFactory([X.numpy()], None, 20.0)
        program = delegate.to_backend(exported, "xnnpack").program
        died = killed_midway(factory, program, lambda runner: ray.kill(runner._actor))
    finally:
        ray.shutdown()
    assert died.failure.startswith("the Ray worker died: ")


def test_there_is_no_cluster(exported: ExportedProgram) -> None:
    with pytest.raises(ConfigError, match="there is no Ray cluster at 'nowhere'"):
        delegate.to_backend(exported, config=TWO, placement=delegate.Measured(cluster="nowhere"))


@pytest.mark.usefixtures("site")  # a new registry
def test_ray_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "delegate_ray.runtime.measuring", raising=False)
    with pytest.raises(ConfigError, match=r"needs ray, which is not installed: pip install 'ray\[data\]>=2.50'"):
        delegate.to_backend("absent.pt2", "xnnpack", placement=delegate.Measured(cluster="auto"))
