"""OpenVINO as a backend of delegate: Intel's CPUs, GPUs and NPUs."""

from delegate.usage_data import opt_out

# OpenVINO has a variable for this in CI alone, but works without the package that sends.
opt_out(
    packages=("openvino_telemetry",),
    answers=("~/intel/openvino_telemetry", "~/AppData/Local/Intel Corporation/openvino_telemetry"),
)
