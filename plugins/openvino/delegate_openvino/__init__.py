"""OpenVINO as a backend of delegate: Intel's CPUs, GPUs and NPUs."""
