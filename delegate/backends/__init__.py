"""The backends that come with the project, and the base classes that every backend builds on."""
