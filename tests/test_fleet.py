"""The simulation of a fleet in benchmarks/fleet.py and queues.py: queues with known formulas, and batches."""

from __future__ import annotations

import random
import statistics

import pytest

pytest.importorskip("simpy", reason="the replicas are simulated")

from benchmarks.fleet import replicas_for
from benchmarks.queues import Fleet, capacity, equal_times_percentile, mean_wait, simulate
from benchmarks.serving import percentile
from benchmarks.serving_client import even_gaps, random_gaps

EQUAL = {1: [0.01]}
_DRAWN = random.Random(0)
EXPONENTIAL = {1: [_DRAWN.expovariate(100.0) for _ in range(20_000)]}


@pytest.mark.parametrize(
    ("times", "replicas", "load", "variation", "tolerance"),
    [
        (EXPONENTIAL, 1, 0.5, 1.0, 0.05),
        (EXPONENTIAL, 4, 0.6, 1.0, 0.1),
        (EQUAL, 1, 0.7, 0.0, 0.05),
        (EQUAL, 4, 0.7, 0.0, 0.1),
    ],
    ids=["M/M/1", "M/M/4", "M/D/1", "M/D/4"],
)
def test_the_mean_wait_is_that_of_the_formula(times, replicas, load, variation, tolerance):
    seconds = statistics.mean(times[1])
    rate = load * replicas / seconds
    wait = statistics.mean(simulate(Fleet(replicas), random_gaps(rate), times, 30_000)) - seconds
    assert wait == pytest.approx(mean_wait(replicas, rate, seconds, variation), rel=tolerance)


@pytest.mark.parametrize(("load", "ratio"), [(0.4, 3.5), (0.8, 5.0)])
def test_the_percentiles_of_equal_calls_are_those_of_the_formula(load, ratio):
    """So no server with one call of equal length at a time has p99 / p50 = 3 at these loads, for random arrivals."""
    seconds = EQUAL[1][0]
    times = simulate(Fleet(1), random_gaps(load / seconds), EQUAL, 60_000)
    p50, p99 = (seconds * equal_times_percentile(load, part) for part in (50, 99))
    assert percentile(times, 50) == pytest.approx(p50, rel=0.03)
    assert percentile(times, 99) == pytest.approx(p99, rel=0.06)
    assert p99 / p50 == pytest.approx(ratio, abs=0.05)


def test_even_arrivals_do_not_wait():
    times = simulate(Fleet(1), even_gaps(80.0), EQUAL, 1000)
    assert max(times) == pytest.approx(EQUAL[1][0])


def test_one_queue_waits_less_than_many():
    mean = {
        balancer: statistics.mean(simulate(Fleet(8, 1, balancer), random_gaps(640.0), EQUAL, 20_000))
        for balancer in ("shared", "least", "random")
    }
    assert mean["shared"] <= mean["least"] < mean["random"]


def test_batches_raise_the_capacity():
    times = {1: [0.010], 4: [0.016]}
    assert capacity(times, 1) == pytest.approx(100)
    assert capacity(times, 4) == pytest.approx(250)
    latencies = simulate(Fleet(1, 4), random_gaps(200.0), times, 20_000)  # twice what single calls can do
    assert min(latencies) == pytest.approx(0.010)
    assert max(latencies) < 0.2
    assert max(simulate(Fleet(1, 1), random_gaps(200.0), times, 5000)) > 10


def test_the_replicas_for_a_rate():
    replicas, latencies = replicas_for(EQUAL, 1000.0, 0.03, Fleet(1))
    assert 11 <= replicas <= 13
    assert len(latencies) == 90_000
    with pytest.raises(SystemExit, match="a single call takes"):
        replicas_for(EQUAL, 1000.0, 0.01, Fleet(1))
