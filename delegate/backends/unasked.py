"""A backend that nobody asked for by name: its faults are one warning, and others run what it fails at."""

from __future__ import annotations

from collections.abc import Callable

from delegate.backends.aot import PreprocessResult, Region, RegionFailed, RegionGivenUp, RegionRefused
from delegate.backends.checked import CheckedBackend
from delegate.backends.guarded import GuardedBackend
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
        backend: the argument.
        check, claims, preserve_ops, most_constants: the backend's own.
    """

    def __init__(
        self, backend: CheckedBackend | GuardedBackend, tell: Callable[[DelegateError], None], *, foreign: bool
    ) -> None:
        self.check, self.claims = backend.check, backend.claims
        self.preserve_ops, self.most_constants = backend.preserve_ops, backend.most_constants
        self.backend, self._tell = backend, tell
        self.foreign, self._has_failed = foreign, False

    @property
    def has_failed(self) -> bool:
        """Return true if there was any fault."""
        return self._has_failed or (isinstance(self.backend, GuardedBackend) and self.backend.has_failed)

    def on_fault(self, fault: DelegateError) -> None:
        """Told of a fault in its answers, see `Capability`."""
        self._has_failed = True
        self._tell(fault)

    def option_rules(self) -> dict[str, Rule]:
        """The values that each of its options accepts."""
        return self.backend.option_rules()

    def identity(self, state: BackendState) -> str | None:
        """As the backend's own, but what it fails at is not kept."""
        try:
            return self.backend.identity(state)
        except DelegateError as fault:
            self.on_fault(fault)
            return None

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        """Raise an exception if a cached artifact of a region is impossible."""
        self.backend.check_artifact(region, artifact)

    def preprocess(self, region: Region) -> PreprocessResult:
        """As the backend's own, but a region that it fails at it refuses, whole."""
        try:
            return self.backend.preprocess(region)
        except (RegionRefused, RegionFailed):
            raise
        except DelegateError as fault:
            self.on_fault(fault)
            raise RegionGivenUp({node.name: fault.what for node in region.calls}) from fault
