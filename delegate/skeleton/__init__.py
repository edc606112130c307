"""The backend that `delegate new-backend` writes: a whole package, of which `acme` becomes another name."""
