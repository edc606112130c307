"""`delegate demo`: the digits example."""

from __future__ import annotations


def demo() -> None:
    """Train a small digits classifier, lower it, save it, and run it without torch."""
    run()


def run() -> None:
    """Start the example."""
    from delegate.demo import main

    main()
