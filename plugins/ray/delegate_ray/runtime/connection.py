"""A connection to a Ray cluster, whose nodes have the version of the driver."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
import ray._private.worker
from ray.exceptions import RayError

import delegate
from delegate.common.user_warnings import warn_user
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
        address: An address for `ray.init`: host:port, "auto", or "ray://host:port".

    Raises:
        ConfigError: the cluster does not exist, or it has another version of Ray or Python.
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
    """Raise BackendFailed for an error of Ray, such as a cluster's after it has started again."""
    try:
        yield
    except RayError as error:
        first, _, _ = str(error).partition("\n")[0].partition(". ")  # the rest lists possible causes
        what = f"the Ray cluster failed: {type(error).__name__}: {first}"
        raise BackendFailed(what, where="--ray", remedy="start the same command again") from error


class Waiting:
    """Waits for answers of the cluster, as long as it has a head, and a node that can give one of them."""

    def __init__(self) -> None:
        self._lost: float | None = None  # the time since when there is no such node

    def first(self, answers: Mapping[Any, Mapping[str, float]]) -> Any:
        """Return the first answer that is there.

        Args:
            answers: answer -> the resources that Ray reserves for it on one node, e.g. {"CPU": 2}.

        Raises:
            BackendFailed: the head of the cluster, or all nodes with these resources, have not answered for 20 s.
        """
        while True:
            ready, _ = ray.wait(list(answers), timeout=_LOOK)
            if self._lost is not None or not ready:
                require_head()
                self._require_node(answers.values())
            if ready:
                return ready[0]

    def _require_node(self, needs: Collection[Mapping[str, float]]) -> None:
        """Warn if no node has the resources of an answer; raise BackendFailed if that has lasted for 20 s."""
        described = " or ".join(dict.fromkeys(map(_describe, needs)))
        if any(map(has_node, needs)):
            self._lost = None
        elif self._lost is None:
            self._lost = time.monotonic()
            text = f"no node of the Ray cluster is alive that has {described}: waiting {_PATIENCE:g} s for one"
            warn_user(text)
        elif time.monotonic() - self._lost > _PATIENCE:
            what = f"the Ray cluster has had no node with {described} for {_PATIENCE:g} s"
            remedy = "start a node, and then the same command, which continues"
            raise BackendFailed(what, where="--ray", remedy=remedy)


def has_node(needs: Mapping[str, float]) -> bool:
    """Return True if one node of the cluster answers and has these resources, which others may use at present."""
    return any(
        all(node["Resources"].get(name, 0) >= amount for name, amount in needs.items())
        and (_is_client() or _answers(node["NodeManagerAddress"], node["NodeManagerPort"]))  # before Ray notices
        for node in ray.nodes()
        if node["Alive"]
    )


def _describe(needs: Mapping[str, float]) -> str:
    cpus = f"{needs['CPU']:g} CPU{'' if needs['CPU'] == 1 else 's'}"
    return " and ".join((cpus, *(repr(name) for name in needs if name != "CPU")))


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
    if _is_client():
        return True
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return _answers(host.strip("[]"), int(port))


def _is_client() -> bool:
    """Return True if a proxy of the head connects this process, which reaches no node but raises Ray's errors."""
    return bool(ray.util.client.ray.is_connected())


def _answers(host: str, port: int) -> bool:
    """Return True if something listens at an address of the cluster."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT).close()
    except OSError:
        return False
    return True


def require_version(version: str) -> None:
    """Raise ConfigError if this node has another version of this project than the driver."""
    if delegate.__version__ != version:
        what = f"a node has delegate {delegate.__version__}, and the driver {version}"
        raise ConfigError(what, where=ray.util.get_node_ip_address(), remedy="install one version on all nodes")
