"""The backend `webgpu`: GPUs of any vendor, by ONNX Runtime's WebGPU plugin."""
