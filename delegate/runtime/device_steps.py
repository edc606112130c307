"""Steps on values in the memory of a device. Imported only by programs with memory spaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from delegate.errors import DelegateError
from delegate.program.blocks import walk
from delegate.program.model import DelegateCall, DelegateSpec, Method, Program
from delegate.runtime.backend import DeviceTensor
from delegate.runtime.spaces import Space
from delegate.runtime.steps import DelegateStep, failed, outputs_not_filled


class DeviceStep(DelegateStep):
    """Runs a delegate with inputs in device memory, or on the host after a fallback."""

    __slots__ = ()

    def __call__(self) -> None:
        with self.lock:
            if self.delegate.execute(tuple([_current(t) for t in self.inputs]), tuple(self.outputs)) is not None:
                raise outputs_not_filled()


def _current(tensor: Any) -> Any:
    return tensor.host if isinstance(tensor, DeviceTensor) and tensor.host is not None else tensor


class FetchStep:
    """Copies a tensor from a device to the host. `outs` is a list of one array, which a call may replace."""

    __slots__ = ("outs", "source", "spec")

    def __init__(self, source: DeviceTensor, outs: list[Any], spec: DelegateSpec) -> None:
        self.source, self.outs, self.spec = source, outs, spec

    def __call__(self) -> None:
        np.copyto(self.outs[0], self.source.fetch())

    def failed(self, error: BaseException) -> DelegateError:
        """Return the error that names the partition that wrote the tensor."""
        return failed(self.spec, error)


class UploadStep:
    """Copies an array to a device, once for all delegates there that read it.

    `args` begins with the array, which a call may replace. Partitions that run on their fallbacks get a copy on the
    host.
    """

    __slots__ = ("args", "space", "spec", "target")

    def __init__(self, args: list[Any], target: DeviceTensor, space: Space, spec: DelegateSpec) -> None:
        self.args, self.target, self.space, self.spec = args, target, space, spec

    def __call__(self) -> None:
        if self.space.is_lost:
            self.target.host = np.array(self.args[0], order="C")
        else:
            self.target.store(self.args[0])

    def failed(self, error: BaseException) -> DelegateError:
        """Return the error that names the first partition that reads the tensor."""
        return failed(self.spec, error)


def partition_of(program: Program, method: Method, index: int) -> DelegateSpec:
    """Return the first delegate that writes or reads a value."""
    calls = (c for c in walk(method.instructions) if isinstance(c, DelegateCall))
    return next(program.delegates[c.delegate] for c in calls if index in c.outputs or index in c.inputs)
