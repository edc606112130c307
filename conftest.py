"""Random numbers, threads and garbage collections of every test, here and in plugins/."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys

import pytest

# Threads of torch and NumPy that wait for each other by spinning: without a share for each process of `-n 2` a test
# takes twice as long. Both libraries read this when they are loaded.
if _workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _workers)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run take other random numbers, which shows tests that hold for some only, or a few cases of each table."""
    parser.addoption("--seed", type=int, default=0, help="seed of the random numbers of every test")
    parser.addoption("--sample", type=int, metavar="N", help="run at most N cases of each test, spread over its table")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the sample that `--sample` requests, without the tests marked extended."""
    most = config.getoption("--sample")
    if most is None:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("extended") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for own in cases.values() for item in own[:: -(-len(own) // most)]}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Seed what a module draws while it is imported."""
    if isinstance(collector, pytest.Module):
        _seed(collector.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what a test and its fixtures draw, before the first of them."""
    _seed(item.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Store compiled test modules, although `make test` sets PYTHONDONTWRITEBYTECODE.

    Every worker collects all modules, and would compile them and rewrite their asserts in each run. That is a third of
    the time of a collection. Modules that tests write are imported later.
    """
    sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Keep two costs out of every test: garbage collections of imported modules, and torch's structured trace.

    Collections took a quarter of the suite's time. Pytest adds its handlers to each logger that does not propagate, and
    torch writes its trace if this logger has a handler, which was a tenth of each export.
    """
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    logging.getLogger("torch.__trace").propagate = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def _seed(config: pytest.Config) -> None:
    seed = config.getoption("--seed")
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
