"""Dynamic batching: which requests share a call, that each gets its own rows, and models that have no batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.models import Models
from delegate_serve.runtime.pool import Pool
from delegate_serve.runtime.settings import ModelFile, Settings
from delegate_serve.runtime.worker import Worker

import delegate
from delegate.errors import ConfigError
from delegate.runtime.batching import Batching, batching_of
from delegate.testing import assert_same

BATCH = torch.export.Dim("batch", min=1, max=64)
LENGTH = torch.export.Dim("length", min=1, max=32)


class Calls:
    """A method that adds one to its input, and keeps the sizes of its calls. A negative number fails."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        (array,) = leaves
        self.sizes.append(array.shape)
        if (array < 0).any():
            raise delegate.InputError("a number is negative")
        return [array + 1]


async def answers(worker: Worker, arrays: Sequence[Any]) -> list[Any]:
    """Return the result, or the error, of requests that arrive together."""
    return await asyncio.gather(*(worker.run([array], None) for array in arrays), return_exceptions=True)


def run(calls: Calls, arrays: Sequence[Any], most: int = 8, delay: float = 0.05, **settings: Any) -> list[Any]:
    """Run requests on a worker that waits for more of them."""
    pool = Pool(2)
    worker = Worker(
        "calls",
        calls,
        lambda leaves: leaves,
        Batching(1, most, (0,), (0,)),
        pool,
        Settings(batch=most, batch_delay=delay, **settings),
        Metrics(),
    )
    try:
        return asyncio.run(answers(worker, arrays))
    finally:
        worker.close()
        pool.close()


def rows(*counts: int, width: int = 2) -> list[Any]:
    """Return requests with these numbers of rows, all with different numbers."""
    return [np.arange(n * width, dtype=np.float32).reshape(n, width) + 100 * i for i, n in enumerate(counts)]


@pytest.mark.parametrize(
    ("arrays", "sizes"),
    [
        (rows(1), [(1, 2)]),
        (rows(1, 1, 1), [(3, 2)]),
        (rows(3, 1, 2), [(6, 2)]),
        (rows(5, 3), [(8, 2)]),
        (rows(5, 4), [(5, 2), (4, 2)]),
        (rows(8, 1), [(8, 2), (1, 2)]),
        (rows(9, 1), [(9, 2), (1, 2)]),  # more rows than a batch: a call of its own
        (rows(1, 9, 1), [(1, 2), (9, 2), (1, 2)]),
        (rows(0, 1), [(1, 2)]),
        (rows(1) + rows(1, width=3) + rows(1), [(1, 2), (1, 3), (1, 2)]),
        (rows(*[1] * 20), [(8, 2), (8, 2), (4, 2)]),
    ],
)
def test_calls(arrays: Any, sizes: list[tuple[int, ...]]) -> None:
    calls = Calls()
    results = run(calls, arrays)
    assert calls.sizes == sizes
    for array, (result,) in zip(arrays, results, strict=True):
        assert_same(result, array + 1, 0)


def test_a_fault_of_one_request_is_not_that_of_the_others() -> None:
    """The call of the batch fails, so each request runs by itself."""
    calls = Calls()
    first, wrong, last = rows(1, 1, 1)
    results = run(calls, [first, -wrong - 1, last])
    assert calls.sizes == [(3, 2), (1, 2), (1, 2), (1, 2)]
    assert isinstance(results[1], RequestError)
    assert (results[1].status, results[1].message) == (400, "a number is negative")
    for array, result in ((first, results[0]), (last, results[2])):
        assert_same(result[0], array + 1, 0)


def test_waiting_requests_share_a_call_without_a_delay() -> None:
    calls = Calls()
    run(calls, rows(*[1] * 6), delay=0.0)
    assert sum(size[0] for size in calls.sizes) == 6
    assert len(calls.sizes) < 6


def test_expired_requests_are_not_run() -> None:
    calls = Calls()
    results = run(calls, rows(1, 1), delay=0.2, timeout=0.05)
    assert [result.status for result in results] == [429, 429]
    assert calls.sizes == []


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * y, y + 1


class Weigh(torch.nn.Module):
    """Has a number for each row."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight[:, None]


class Swap(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t()


class Size(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.shape[0]


class Shift(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.roll(1, 0)


class Mean(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Write(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


X = torch.zeros(2, 3)
DEPENDENT = "the rows of a batch of it depend on each other: serve it without --batch"


@pytest.mark.parametrize(
    ("module", "args", "shapes", "expected"),
    [
        (Scale(), (X, X.clone()), ({0: BATCH}, {0: BATCH}), 8),
        (Scale(), (X, X.clone()), ({0: BATCH, 1: LENGTH}, {0: BATCH, 1: LENGTH}), 8),
        (Weigh(), (X, torch.zeros(2)), ({0: BATCH}, {0: BATCH}), 8),  # its guard is that the size is itself
        (Scale(), (X, torch.zeros(3)), ({0: BATCH}, None), None),  # the second has no rows
        (Scale(), (X, X.clone()), None, None),
        (torch.nn.Linear(3, 4), (X,), ({0: BATCH},), 8),
        (torch.nn.Linear(3, 4), (X,), ({0: torch.export.Dim("batch", min=1, max=4)},), 4),
        (Swap(), (X,), ({0: BATCH},), None),
        (Write(), (X,), ({0: BATCH},), None),
        (Size(), (X,), ({0: BATCH},), "the results of it depend on the number of rows: serve it without --batch"),
        (Shift(), (X,), ({0: BATCH},), DEPENDENT),
        (Mean(), (X,), ({0: BATCH},), DEPENDENT),
    ],
)
def test_methods_with_batches(module: Any, args: Any, shapes: Any, expected: int | str | None) -> None:
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module.eval(), args, dynamic_shapes=shapes), [])
    with delegate.LoadedProgram(program.program) as loaded:
        method = loaded.method("forward")
        if isinstance(expected, str):
            with pytest.raises(ConfigError, match=expected):
                batching_of(method, 8, "it", "serve it without --batch")
        else:
            batching = batching_of(method, 8, "it", "serve it without --batch")
            assert (batching and batching.most) == expected
        assert batching_of(method, 1, "it", "") is None


def test_a_server_with_batching(serve: Any, programs: dict[str, Path]) -> None:
    """Each of many requests at once gets the bits of its own rows."""
    served = serve({"net": programs["net"]}, batch=8, batch_delay=0.02)
    assert served.models.by_name["net"].batching.most == 8
    images = np.random.default_rng(0).standard_normal((12, 1, 3, 8, 8), np.float32)

    def infer(image: Any) -> Any:
        rows = [{"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": image.ravel().tolist()}]
        return served.infer("net", {"inputs": rows}).json["outputs"][0]["data"]

    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(infer, images))
    with delegate.load(programs["net"]) as program:
        assert {spec.backend for spec in program.program.delegates} == {"xnnpack"}
        for image, result in zip(images, results, strict=True):
            assert_same(np.array([result], np.float32), program(image), 1e-6)
    assert served.metric('delegate_run_seconds_count{model="net"}') < 12
    assert served.metric('delegate_batch_requests_sum{model="net"}') == 12


def test_rows_that_depend_on_each_other_are_an_error_at_the_start(programs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="the rows of a batch of model 'mean' depend on each other"):
        Models({"mean": ModelFile(programs["mean"], Settings(batch=4))}, Metrics())
    with Models({"mean": ModelFile(programs["mean"])}, Metrics()) as models:
        assert models.by_name["mean"].batching is None
