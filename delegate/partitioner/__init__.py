"""From an EdgeProgram to a Plan: a verdict per node and backend, convex regions, tags. Needs torch."""
