"""GPUs: of any vendor by ONNX Runtime's WebGPU plugin, of NVIDIA by TVM."""
