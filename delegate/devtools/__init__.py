"""Tools that look into programs and runs."""
