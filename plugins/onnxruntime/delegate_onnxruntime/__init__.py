"""ONNX Runtime as backends of delegate: each of its execution providers, GPUs by WebGPU, and Qualcomm's DSP by QNN."""

from delegate.usage_data import opt_out

opt_out(variables={"ORT_DISABLE_TELEMETRY": "1"})
