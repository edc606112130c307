"""A backend of delegate."""
