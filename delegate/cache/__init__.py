"""Data on disk that processes share, in one folder per user. Compiled partitions are in `artifacts/`."""
