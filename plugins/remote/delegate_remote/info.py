"""Facts of both ways to measure that need neither torch nor Ray."""

from __future__ import annotations

from delegate.measurements import BUNDLE, CLUSTER, MeasurementInfo

BUNDLES = MeasurementInfo(
    name=BUNDLE,
    description="Bundles of programs, measured on another machine by `delegate measure`",
    runtime="delegate_remote.runtime.measuring:measure",
    aot="delegate_remote.aot:open_placement",
    api_version=(1, 0),
)
RAY = MeasurementInfo(
    name=CLUSTER,
    description="Nodes of a Ray cluster that have the backends as resources",
    runtime="delegate_remote.runtime.cluster:RayCluster",
    requires=("ray",),
    install="pip install 'ray>=2.50'",
    api_version=(1, 0),
)
