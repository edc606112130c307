"""Rewrites of an EdgeProgram, one per file."""
