"""From an ExportedProgram to an EdgeProgram: core ATen, functional, normalised, verified. Needs torch."""
