"""`delegate demo`: a trained network on every backend of this machine, as one table."""
