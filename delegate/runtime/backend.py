"""The runtime half of a backend: turns a blob into something that can be executed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Delegate(ABC):
    """A lowered partition, ready to run.

    It keeps nothing of one call for the next that would change a result: the contexts of a program share it.

    Attributes:
        thread_safe: whether `execute` may run in several threads at once. Where it is False the runtime lets one call
            in at a time.
    """

    thread_safe: bool = False

    @abstractmethod
    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run once.

        Args:
            inputs: C-contiguous arrays in the order and with the dtypes of the region's inputs; only read. Where the
                region has dynamic dimensions the shapes may differ from call to call.
            outputs: arrays to fill completely, C-contiguous, of the right shapes for these inputs. They may be others
                at every call; do not keep them.

        It should release the GIL during long work of the library, so that other threads go on.

        Raises:
            BackendFailed: the vendor library failed; the next call must still be right.
        """

    def close(self) -> None:  # noqa: B027 - most delegates have nothing to free
        """Free what the vendor library holds. Called at most once; `execute` is not called afterwards."""


class BackendRuntime(ABC):
    """The runtime half. One object serves one loaded program."""

    @abstractmethod
    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        """Make a delegate of a blob (mapped from the file, valid as long as the program is open).

        Raises:
            BackendUnavailable: the library or the device is absent here.
            BackendFailed: the library does not take the blob.
        """
