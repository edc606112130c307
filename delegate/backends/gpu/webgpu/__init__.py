"""The backend `webgpu`: GPUs of any vendor, by ONNX Runtime's WebGPU plugin."""

import delegate.backends.onnx  # noqa: F401 - opts out of ONNX Runtime's usage data
