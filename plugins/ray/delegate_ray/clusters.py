"""The entry point of measurements on a Ray cluster, which imports Ray when a cluster is requested."""

from __future__ import annotations

from delegate.errors import ConfigError
from delegate.placement.runtime.trials import Cluster


def open_cluster(address: str) -> Cluster:
    """Return the connection to a cluster; raises ConfigError if Ray is not installed."""
    try:
        from delegate_ray.runtime.measuring import RayCluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        what = "measuring on a cluster needs ray, which is not installed"
        raise ConfigError(what, remedy="pip install 'ray[data]>=2.50'") from error
    return RayCluster(address)
