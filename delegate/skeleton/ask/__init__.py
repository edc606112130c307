"""The files of `delegate new-backend --template ask` that differ from the others."""
