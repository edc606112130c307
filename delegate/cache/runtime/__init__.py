"""Data on disk without torch: the store, and what a program needs of it at load."""
