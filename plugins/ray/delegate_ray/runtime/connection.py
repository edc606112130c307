"""A connection to a Ray cluster, whose nodes have the version of the driver."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import ray._private.worker
from ray.exceptions import RayError

import delegate
from delegate.errors import BackendFailed, ConfigError
from delegate.plugins import one_line

_CONNECT = 5.0  # seconds
_LOOK = 5.0  # seconds without an answer until a check of the head
_PATIENCE = 20.0  # seconds until a head that does not answer is an error; after 60 s Ray ends this process
_PAUSE = 1.0  # seconds between two checks of a head that does not answer
_START = "start one, `ray start --head`, or correct the address; for a cluster with a token set RAY_AUTH_MODE=token"


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a Ray cluster in a `with` block. An existing connection of this process is used instead.

    Args:
        address: for `ray.init`: host:port, "auto", or "ray://host:port".

    Raises:
        ConfigError: there is no cluster, or it has another version of Ray or Python.
        BackendFailed: the cluster fails during the block.
    """
    if ray.is_initialized():
        with _named_errors():
            yield
        return
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises all kinds
        what = f"there is no Ray cluster at {address!r}: {one_line(error)}"
        raise ConfigError(what, where="--ray", remedy=_START) from error
    ray._private.worker._worker_logs_enabled = False  # else the logs of a node that dies go to stdout
    try:
        with _named_errors():
            yield
    finally:
        ray.shutdown()
        ray._private.worker._worker_logs_enabled = True


@contextmanager
def _named_errors() -> Iterator[None]:
    """Raise BackendFailed for an error of Ray, such as that of a cluster which has started again."""
    try:
        yield
    except RayError as error:
        first, _, _ = str(error).partition("\n")[0].partition(". ")  # the rest lists possible causes
        what = f"the Ray cluster failed: {type(error).__name__}: {first}"
        raise BackendFailed(what, where="--ray", remedy="start the same command again") from error


def first_answer(answers: Sequence[Any]) -> Any:
    """Return the first answer that is there; raises BackendFailed if the head of the cluster has died."""
    while True:
        ready, _ = ray.wait(answers, timeout=_LOOK)
        if ready:
            return ready[0]
        require_head()


def require_head() -> None:
    """Wait for the head of the cluster, since Ray's calls do not return without it; raises BackendFailed after 20 s."""
    begin = time.monotonic()
    while not _has_head():
        if time.monotonic() - begin > _PATIENCE:
            what = f"the head of the Ray cluster has not answered for {_PATIENCE:g} s"
            remedy = "start the cluster again, and then the same command, which continues"
            raise BackendFailed(what, where="--ray", remedy=remedy)
        time.sleep(_PAUSE)


def _has_head() -> bool:
    if ray.util.client.ray.is_connected():  # a proxy of the head, whose errors Ray raises
        return True
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except OSError:
        return False
    return True


def require_version(version: str) -> None:
    """Raise ConfigError if this node has another version of this project than the driver."""
    if delegate.__version__ != version:
        what = f"a node has delegate {delegate.__version__}, and the driver {version}"
        raise ConfigError(what, where=ray.util.get_node_ip_address(), remedy="install one version on all nodes")
