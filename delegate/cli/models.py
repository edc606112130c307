"""MODEL of the command line: a .pt2 or TorchScript file, or package.module:function.

The function returns (module, example_inputs), or an ExportedProgram.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from delegate.accuracy.samples import Sample, input_names, sample_of
from delegate.cli.arrays import read_array, read_inputs
from delegate.common.files import foreign_format
from delegate.config import Config, load_config
from delegate.edge.sources import (
    export,
    export_module,
    is_torchscript,
    list_archive,
    read_programs,
    require_no_program,
)
from delegate.errors import ConfigError, ExportError
from delegate.plugins import one_line
from delegate.plugins.user_modules import load_function

_EXPORT = "export it: torch.export.save(torch.export.export(module.eval(), example_inputs), 'model.pt2')"
_FOREIGN = (
    "export the model in PyTorch: torch.export.save(torch.export.export(module.eval(), example_inputs), 'model.pt2'). "
    "For a language model, `delegate llm export` of delegate-llm takes its folder in the format of transformers"
)
_RETURN = "return (module, example_inputs) with example_inputs a tuple, or an ExportedProgram"


def load_model(text: str, inputs: Sequence[str] = ()) -> ExportedProgram | Path:
    """Return the model of a MODEL argument, for `to_backend`.

    Args:
        text: MODEL.
        inputs: .npy files, the example inputs of a TorchScript file.

    Raises:
        ExportError: the file, module or function does not exist, or it returns no model; the remedy names a valid form.
        InputError: a file of inputs cannot be read.
    """
    path = Path(text)
    require_no_program(path)
    if (os.path.exists(path) or ":" not in text) and is_torchscript(path):
        return _convert(path, inputs)
    if inputs:
        raise ExportError("--input is for TorchScript files", where=text, remedy="leave it out")
    if os.path.exists(path) or ":" not in text:
        return _check_file(path)
    return _call(text)


def read_settings(config: Path | None, calibration: str | None) -> Config | None:
    """Read a configuration, with other calibration data if these are given; None without a configuration.

    Raises:
        ConfigError: the configuration is wrong, or has no quantization although there are calibration data.
    """
    settings = None if config is None else load_config(config)
    if calibration is None:
        return settings
    if settings is None or settings.quantization is None:
        remedy = "add a `quantization` section to the configuration, and give it with --config"
        raise ConfigError("--calibration is only for models that are quantized", remedy=remedy)
    section = settings.quantization.model_copy(update={"calibration": calibration})
    return settings.model_copy(update={"quantization": section})


def read_sample(model: ExportedProgram | Path, files: Sequence[str]) -> tuple[ExportedProgram, Sample]:
    """Read the model, and the inputs to verify it on.

    Args:
        model: the result of `load_model`.
        files: files of inputs, as for `read_inputs`.

    Raises:
        ExportError: the file of the model cannot be read.
        InputError: a file of inputs cannot be read, or does not fit.
    """
    ((method, exported),) = read_programs(model).items()
    return exported, sample_of(exported, read_inputs(method, input_names(exported), files))


def _convert(path: Path, inputs: Sequence[str]) -> ExportedProgram:
    if not inputs:
        remedy = "give them with --input A.npy, in order"
        raise ExportError(f"{str(path)!r} is a TorchScript file and needs example inputs", remedy=remedy)
    arrays = (read_array(f"number {i + 1}", file) for i, file in enumerate(inputs))
    return export(path, tuple(map(torch.from_numpy, arrays)))


def _check_file(path: Path) -> Path:
    """Raise ExportError that describes a file if it is not an exported program, without unpickling anything."""
    if not os.path.isfile(path):
        what = (
            "is a directory" if os.path.isdir(path) else "is not a file" if os.path.exists(path) else "does not exist"
        )
        raise ExportError(f"{str(path)!r} {what}", remedy="give a .pt2 file, or package.module:function")
    names = list_archive(path)
    if names is None:
        if name := foreign_format(path):
            raise ExportError(f"{str(path)!r} is in the format {name}, not an exported program", remedy=_FOREIGN)
        raise ExportError(f"{str(path)!r} is not a .pt2 file", remedy=_EXPORT)
    if "data.pkl" in names:
        raise ExportError(f"{str(path)!r} was written by torch.save, and is not an exported program", remedy=_EXPORT)
    return path


def _call(text: str) -> ExportedProgram:
    module_name, _, function_name = text.partition(":")
    if not (module_name and function_name.isidentifier()):
        raise ExportError(f"{text!r} is not a model", remedy="give a .pt2 file, or package.module:function")
    function = load_function(text, f"model {text}")
    try:
        result = function()
    except (Exception, SystemExit) as error:
        raise ExportError(f"{text} failed: {one_line(error)}", remedy="`--debug` shows the traceback") from error
    if isinstance(result, ExportedProgram):
        return result
    if not (isinstance(result, tuple | list) and len(result) == 2):
        kind = (
            f"{type(result).__name__} of {len(result)}" if isinstance(result, tuple | list) else type(result).__name__
        )
        raise ExportError(f"{text} returned a {kind}", remedy=_RETURN)
    module, inputs = result
    if not isinstance(module, torch.nn.Module):
        raise ExportError(f"{text} returned a {type(module).__name__} instead of a module", remedy=_RETURN)
    if not isinstance(inputs, tuple | list):
        raise ExportError(f"{text} returned inputs that are a {type(inputs).__name__}, not a tuple", remedy=_RETURN)
    return export_module(module.eval(), tuple(inputs), f"the module of {text}")
