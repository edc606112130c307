"""Tools for the authors of backends: a class of pytest tests to subclass, and a comparison of results."""

from delegate.testing.backend import BackendTests as BackendTests
from delegate.testing.cases import Case as Case
from delegate.testing.comparison import assert_same as assert_same
from delegate.testing.comparison import relative_error as relative_error

__all__ = ["BackendTests", "Case", "assert_same", "relative_error"]
