"""Facts of measurements on a Ray cluster that need neither torch nor Ray."""

from __future__ import annotations

from delegate.plugins.measurements import CLUSTER, MeasurementInfo

RAY = MeasurementInfo(
    name=CLUSTER,
    description="Nodes of a Ray cluster that have the backends as resources",
    part="delegate_ray.runtime.measuring:RayCluster",
    requires=("ray",),
    install="pip install 'ray>=2.50'",
    api_version=(1, 0),
)
