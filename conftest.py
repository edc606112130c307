"""Random numbers of every test, here and in plugins/: the same in each run, others with `--seed`."""

from __future__ import annotations

import random
import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run take other random numbers, which shows tests that hold for some only."""
    parser.addoption("--seed", type=int, default=0, help="seed of the random numbers of every test")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Seed what a module draws while it is imported."""
    if isinstance(collector, pytest.Module):
        _seed(collector.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed what a test and its fixtures draw, before the first of them."""
    _seed(item.config)


def _seed(config: pytest.Config) -> None:
    seed = config.getoption("--seed")
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
