"""GPUs, two backends: `webgpu` for any vendor's, by ONNX Runtime's plugin; `cuda` for NVIDIA's, by TVM."""
