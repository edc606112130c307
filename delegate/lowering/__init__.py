"""What lowers programs: the compiler, and what a configuration may ask for before, while and after it works."""
