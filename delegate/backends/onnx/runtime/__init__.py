"""ONNX Runtime sessions, shared by webgpu, dsp and the plugin onnxruntime. Needs no torch."""
