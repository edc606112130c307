"""A connection to a Ray cluster, whose nodes have the version of the driver."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import ray._private.worker

import delegate
from delegate.errors import ConfigError
from delegate.plugins import one_line

_CONNECT = 5.0  # seconds
_START = "start one, `ray start --head`, or correct the address; for a cluster with a token set RAY_AUTH_MODE=token"


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a Ray cluster in a `with` block. An existing connection of this process is used instead.

    Args:
        address: for `ray.init`: host:port, "auto", or "ray://host:port".

    Raises:
        ConfigError: there is no cluster, or it has another version of Ray or Python.
    """
    if ray.is_initialized():
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
        yield
    finally:
        ray.shutdown()
        ray._private.worker._worker_logs_enabled = True


def require_version(version: str) -> None:
    """Raise ConfigError if this node has another version of this project than the driver."""
    if delegate.__version__ != version:
        what = f"a node has delegate {delegate.__version__}, and the driver {version}"
        raise ConfigError(what, where=ray.util.get_node_ip_address(), remedy="install one version on all nodes")
