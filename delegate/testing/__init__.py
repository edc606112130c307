"""What the authors of backends run against them: a class of tests for pytest, to be subclassed, and a comparison."""

from delegate.testing.backend import BackendTests as BackendTests
from delegate.testing.cases import Case as Case
from delegate.testing.comparison import assert_same as assert_same
from delegate.testing.comparison import relative_error as relative_error

__all__ = ["BackendTests", "Case", "assert_same", "relative_error"]
