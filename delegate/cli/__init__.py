"""The command line: thin commands over the library. Only this package prints."""
