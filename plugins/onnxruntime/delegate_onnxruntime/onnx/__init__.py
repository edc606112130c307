"""What the backends share: a region becomes an ONNX model, which a session on one provider runs."""
