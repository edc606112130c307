"""Translation of regions to ONNX, shared by webgpu, dsp and the plugin onnxruntime. Needs torch."""
