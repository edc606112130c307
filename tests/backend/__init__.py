"""Tests of what the author of a backend builds on."""
