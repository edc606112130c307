"""Caches of what lowering computes, for later lowerings."""
