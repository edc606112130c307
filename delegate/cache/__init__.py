"""What is kept on disk between processes, in one folder of the user's: compiled partitions, in `artifacts/`."""
