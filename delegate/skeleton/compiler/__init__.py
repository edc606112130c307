"""The files of `delegate new-backend --template compiler` that differ from the others."""
