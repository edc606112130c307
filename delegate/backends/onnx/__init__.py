"""What backends on ONNX Runtime share: a region becomes an ONNX model, and a session on one provider runs all of it."""
