"""Rows of files and of Ray's batches through programs. Needs NumPy, pyarrow, and for clusters Ray, but no torch."""
