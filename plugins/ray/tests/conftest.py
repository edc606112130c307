"""Programs with data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import delegate
from tests.support.lowering import assert_runs
from tests.support.placing import at_once
from tests.support.plugins import site

__all__ = ["at_once", "site"]
ROWS = 50
PLUGINS = Path(__file__).parents[2]


class Net(torch.nn.Module):
    """A classifier on XNNPACK."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


class Lookup(torch.nn.Module):
    """Fails for indices out of range, and has two inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 4)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = self.table(ids)
        return {"rows": rows * scale[:, None], "sum": rows.sum(1)}


class Mean(torch.nn.Module):
    """Has rows that depend on each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Counter(torch.nn.Module):
    """Has a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total.clone()


class Double(torch.nn.Module):
    """Takes cells of any shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def metrics(port: int) -> str:
    """Return the text of a server's metrics."""
    return str(urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())


class Positive(torch.nn.Module):
    """Has booleans as its result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x > 0


class Brightness(torch.nn.Module):
    """Takes images as they are in files."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.float().mean((1, 2))


class Data(NamedTuple):
    """Files of programs by name, the modules, and a file with the columns id and x."""

    programs: dict[str, Path]
    modules: dict[str, torch.nn.Module]
    parquet: Path
    x: np.ndarray


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("data")
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=16)
    pairs = torch.export.Dim("pairs", min=2, max=16)
    length = torch.export.Dim("length", min=1, max=32)
    net, lookup = Net().eval(), Lookup().eval()
    ids, scale = torch.zeros(2, dtype=torch.int64), torch.ones(2)
    cases: dict[str, tuple[torch.nn.Module, tuple[Any, ...], Any, Sequence[str]]] = {
        "net": (net, (torch.zeros(2, 4),), ({0: batch},), ["xnnpack"]),
        "pairs": (net, (torch.zeros(2, 4),), ({0: pairs},), ["xnnpack"]),
        "static": (net, (torch.zeros(1, 4),), None, ["xnnpack"]),
        "lookup": (lookup, (ids, scale), ({0: batch}, {0: batch}), []),
        "mean": (Mean(), (torch.zeros(2, 4),), ({0: batch},), []),
        "counter": (Counter(), (torch.zeros(4),), None, []),
        "double": (Double(), (torch.zeros(1, 3),), ({1: length},), []),
        "images": (Brightness(), (torch.zeros(2, 5, 6, 3, dtype=torch.uint8),), ({0: batch},), []),
        "whole": (Double(), (torch.zeros(3, 2),), None, []),
        "positive": (Positive(), (torch.zeros(2, 4),), ({0: batch},), []),
        "scalar": (Double(), (torch.zeros(2),), ({0: batch},), []),
        "half": (Double(), (torch.zeros(2, 4, dtype=torch.bfloat16),), ({0: batch},), []),
    }
    programs = {}
    for name, (module, args, shapes, backends) in cases.items():
        programs[name] = folder / f"{name}.dlg"
        program = delegate.to_backend(torch.export.export(module, args, dynamic_shapes=shapes), backends)
        for backend in backends:
            assert_runs(program, backend)
        program.save(programs[name])
    x = np.random.default_rng(0).standard_normal((ROWS, 4), np.float32)
    cells = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 4)
    pyarrow.parquet.write_table(pa.table({"id": range(ROWS), "x": cells}), folder / "d.parquet", row_group_size=20)
    return Data(programs, {name: case[0] for name, case in cases.items()}, folder / "d.parquet", x)


@pytest.fixture(scope="session")
def cluster_environment() -> Iterator[None]:
    """The environment of a cluster whose workers import this project."""
    own = (PLUGINS.parent, PLUGINS / "ray", PLUGINS / "serve")
    paths = (*map(str, own), os.environ.get("PYTHONPATH", ""))
    changed = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(paths)}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(scope="session")
def address(cluster_environment: None) -> Iterator[str]:
    """The address of a Ray cluster: a head with two CPUs."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20},
    )
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def connected(address: str) -> Iterator[None]:
    """A connection, so that tests and command share actors' processes."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


Read = Callable[[Path], pa.Table]


@pytest.fixture
def results() -> Read:
    """A function that returns the rows of an output folder, and asserts that it has nothing but whole files."""

    def read(folder: Path) -> pa.Table:
        names = sorted(os.listdir(folder))
        assert names[0] == "manifest.json"
        assert all(name.startswith("part-") for name in names[1:])
        return pa.concat_tables([pyarrow.parquet.read_table(folder / name) for name in names[1:]])

    return read


def tensor(table: pa.Table, name: str) -> np.ndarray:
    """Return a column of tensors."""
    return table[name].combine_chunks().to_numpy_ndarray()
