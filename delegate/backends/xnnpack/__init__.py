"""XNNPACK, float32, through LiteRT: a region becomes a TFLite model that XNNPACK takes whole."""
