"""What the authors of backends run against them: a class of tests for pytest, to be subclassed."""

from delegate.testing.backend import BackendTests as BackendTests
from delegate.testing.cases import Case as Case

__all__ = ["BackendTests", "Case"]
