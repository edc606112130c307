"""A backend that nobody asked for by name: its faults are one warning, and others run what it fails at."""

from __future__ import annotations

from collections.abc import Callable

from delegate.backends.aot import PreprocessResult, Region, RegionFailed, RegionGivenUp, RegionRefused
from delegate.backends.checked import CheckedBackend
from delegate.backends.state import BackendState
from delegate.errors import DelegateError
from delegate.option_rules import Rule


class UnaskedBackend:
    """A checked AOT half that is used because it is installed.

    Args:
        backend: of which it is.
        tell: warns of a fault.
        foreign: whether it is a plugin of somebody else.

    Attributes:
        check, claims, preserve_ops, most_constants: the backend's own.
        has_failed: whether there was any fault.
    """

    def __init__(self, backend: CheckedBackend, tell: Callable[[DelegateError], None], *, foreign: bool) -> None:
        self.check, self.claims = backend.check, backend.claims
        self.preserve_ops, self.most_constants = backend.preserve_ops, backend.most_constants
        self._backend, self._tell = backend, tell
        self.foreign, self.has_failed = foreign, False

    def on_fault(self, fault: DelegateError) -> None:
        """Told of a fault in its answers, see `Capability`."""
        self.has_failed = True
        self._tell(fault)

    def option_rules(self) -> dict[str, Rule]:
        """The values that each of its options accepts."""
        return self._backend.option_rules()

    def identity(self, state: BackendState) -> str | None:
        """As the backend's own, but what it fails at is not kept."""
        try:
            return self._backend.identity(state)
        except DelegateError as fault:
            self.on_fault(fault)
            return None

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if a cached artifact of a region is impossible."""
        self.backend.check_artifact(region, artifact)

    def preprocess(self, region: Region) -> PreprocessResult:
        """As the backend's own, but a region that it fails at it refuses, whole."""
        try:
            return self._backend.preprocess(region)
        except (RegionRefused, RegionFailed):
            raise
        except DelegateError as fault:
            self.on_fault(fault)
            raise RegionGivenUp({node.name: fault.what for node in region.calls}) from fault
