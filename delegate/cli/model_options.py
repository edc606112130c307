"""The MODEL of a command, and the options that say how it is read and which backends run it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delegate.cli import output
from delegate.cli.completions import backend_names
from delegate.cli.options import Imports, import_modules

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from delegate.config import Config

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="file.pt2, or package.module:function returning (module, example_inputs)."),
]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options that say how a model is read, and which backends run it."""

    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="YAML file; `delegate config check` checks it."),
    ] = None
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="NAME",
            autocompletion=backend_names,
            help="Backend; repeat it in order of preference. Default: all available.",
        ),
    ] = None
    example_inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="A.npy", help="Example input of a TorchScript file, in order."),
    ] = None
    imports: Imports = None

    @property
    def backends(self) -> list[str] | None:
        """The backends in order of preference; None for all available."""
        return self.backend or None

    @property
    def is_given(self) -> bool:
        """Whether the command line has one of these options."""
        return bool(self.config or self.backend or self.example_inputs or self.imports)

    def load_model(self, model: str) -> ExportedProgram | Path:
        """Import the modules of `--import`, and return the model for `to_backend`; raises as `models.load_model`."""
        import_modules(self.imports)
        with output.working("importing torch"):
            from delegate.cli.models import load_model
        with output.working(f"exporting {model}"):
            return load_model(model, self.example_inputs or ())


@dataclass(frozen=True, slots=True)
class LoweringOptions(PlanOptions):
    """The options of commands that compile a model."""

    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Data to quantize with, in place of the configuration's: .npz, a folder of these, or module:function.",
        ),
    ] = None

    def read_settings(self) -> Config | None:
        """Return the configuration, with other calibration data if given; raises as `models.read_settings`."""
        from delegate.cli.models import read_settings

        return read_settings(self.config, self.calibration)
