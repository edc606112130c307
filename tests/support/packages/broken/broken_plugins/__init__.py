"""Backends that do wrong, one way each: installed by tests as any package, into a folder of its own."""
