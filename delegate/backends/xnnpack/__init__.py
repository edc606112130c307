"""XNNPACK through LiteRT: each region becomes a TFLite model that XNNPACK runs completely."""
