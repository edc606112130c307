"""The debugger: finds the operators of a program that return wrong values, and the kind of each fault.

`delegate --help` imports this package, so `debug` imports what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delegate.edge.sources import Model
    from delegate.kernels.libraries import KernelRequest
    from delegate.request import PlacementRequest
    from delegate.selection import ConfigSource, Request
    from delegate_devtools.diagnosis import Diagnosis


def debug(
    model: Model,
    backends: Request = None,
    *,
    inputs: Any = None,
    config: ConfigSource = None,
    kernels: KernelRequest | None = None,
    placement: PlacementRequest | None = None,
    cache: bool | None = None,
    budget: float = 60.0,
    output: str | os.PathLike[str] | None = None,
    program_file: str | os.PathLike[str] | None = None,
    trust_code: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Find the operators that return wrong values: run a model beside torch, and reduce each wrong partition.

    Example::

        print(delegate_devtools.debug(exported, "dsp", output="reproduction"))

    Args:
        model, backends, config, kernels, placement, cache: see `delegate.to_backend`.
        inputs: as `verify` of `to_backend`, which may be a `delegate.Verify`; None: the example inputs of the export.
            Bounds of `Verify` or of the configuration define which results are wrong. Otherwise the default bound of
            the precision does.
        budget: seconds after which no further sub-region is tried.
        output: folder for scripts that show the faults with the vendor's library alone; None: no scripts.
        program_file: a program of this model, saved with debug info. Its placement and its compiled partitions are
            debugged, in place of a new lowering. The default of `backends` is then the backends of the file.
        trust_code: run partitions of that file that are machine code; see `delegate.load`.
        progress: called with short progress texts.

    Raises:
        the errors of `to_backend`, except the errors of verification. InputError if the folder cannot be written, or
        the program file is of another model. ProgramError if it cannot be read, or has no debug info. BackendFailed if
        it has machine code that is not trusted.
    """
    from delegate.errors import ConfigError
    from delegate.registry import default_registry
    from delegate.request import LoweringRequest
    from delegate_devtools.debugger import run_debugger
    from delegate_devtools.saved_program import FromSavedProgram, SavedProgram

    saved = None
    if program_file is not None:
        saved = SavedProgram.load(program_file, default_registry(), trust_code=trust_code)
        backends = saved.backends if backends is None and config is None else backends
    request = LoweringRequest.of(
        model, backends, config, kernels=kernels, placement=placement, cache=cache, progress=progress
    )
    if saved is not None:
        if placement is not None:
            raise ConfigError("the file has a placement of its own", where="debug", remedy="leave out `placement`")
        request = replace(request, strategy=FromSavedProgram(saved))
    return run_debugger(request, inputs, budget=budget, output=output, progress=progress, saved=saved)
