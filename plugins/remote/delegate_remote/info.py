"""Facts of measurements by bundles that need no torch."""

from __future__ import annotations

from delegate.plugins.measurements import BUNDLE, MeasurementInfo

BUNDLES = MeasurementInfo(
    name=BUNDLE,
    description="Bundles of programs, measured on another machine by `delegate measure`",
    part="delegate_remote.aot:open_placement",
    api_version=(1, 0),
)
