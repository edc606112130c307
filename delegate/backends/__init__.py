"""The backends of vendors: each has a description, an ahead-of-time part and a runtime part."""
