"""Reproductions: a folder with a script that shows a fault with the vendor's library alone."""

from __future__ import annotations

import io
import itertools
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from delegate.accuracy.recording import RecordedCall
from delegate.backend.aot import Region, Reproduction
from delegate.backend.exported import exported_program
from delegate.common.files import replacing, with_short_paths
from delegate.compiled import to_array
from delegate.edge.node import describe
from delegate.errors import InputError
from delegate.plugins import one_line
from delegate.runtime.backend import Array
from delegate_devtools.diagnosis import Fault

SCRIPT = "reproduce.py"
_TENSORS = "tensors.npz"
_MODEL = "region.pt2"
_TEMPLATE = '''"""{title}

{description}
"""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent

{code}

tensors = np.load(HERE / "tensors.npz")
results = run([tensors[f"input{{n}}"] for n in range({inputs})])
for n, result in enumerate(results):
    expected = tensors[f"expected{{n}}"].astype(np.float64)
    largest = np.abs(expected).max(initial=0)
    error = np.abs(np.asarray(result, np.float64).reshape(expected.shape) - expected).max(initial=0)
    print(f"output {{n}}: greatest error {{error:.4g}}, greatest expected value {{largest:.4g}}")
'''
_COMPILATION = '''"""{title}

{description}
The options of the backend in your configuration are not part of this script.
"""

from pathlib import Path

import torch

import delegate

exported = torch.export.load(Path(__file__).parent / "region.pt2")
print(delegate.to_backend(exported, {backend!r}, cache=False).report)
'''


def write_reproduction(output: Path, fault: Fault, way: Reproduction, part: Region, call: RecordedCall) -> Path:
    """Write a script, the vendor's files and the tensors into a new folder, and return the path of the script.

    Args:
        output: gets a folder with the names of the partition and its first node. If that exists, the new one has a
            number too: reproductions of earlier searches do not change.
        fault: is described in the script.
        way: runs the artifact.
        part: the region of the artifact.
        call: the inputs of the region, and the results of the library and of torch.

    Raises:
        InputError: the folder cannot be written.
    """
    script = _TEMPLATE.format(
        title=_plain(_title(fault)),
        description=_description(part, way.packages),
        code=way.code,
        inputs=len(call.inputs),
    )
    arrays = {f"input{n}": _array(t) for n, t in enumerate(call.inputs)}
    arrays |= {f"actual{n}": _array(t) for n, t in enumerate(call.actual)}
    arrays |= {f"expected{n}": _array(t) for n, t in enumerate(call.expected)}
    tensors = io.BytesIO()
    np.savez_compressed(tensors, allow_pickle=False, **arrays)
    return _write(output, fault, {**way.files, _TENSORS: tensors.getvalue(), SCRIPT: script.encode()})


def write_compilation(output: Path, fault: Fault, part: Region) -> Path:
    """Write a region that its backend does not compile, and a script that lowers it; return the path of the script.

    No artifact exists to run with the vendor's library alone, so the script needs this project.

    Args:
        output: as of `write_reproduction`.
        fault: is described in the script.
        part: the region.

    Raises:
        InputError: the folder cannot be written, or torch cannot save the region.
    """
    script = _COMPILATION.format(title=_plain(_title(fault)), description=_description(part, ()), backend=fault.place)
    model = io.BytesIO()
    try:
        program = exported_program(part)
        for node in program.graph.nodes:
            if trace := node.meta.get("stack_trace"):
                node.meta["stack_trace"] = with_short_paths(trace)
        torch.export.save(program, model)
    except Exception as error:  # of torch, or sizes that no input has
        raise InputError(f"torch cannot save the operators of the fault: {one_line(error)}", where=part.name) from error
    return _write(output, fault, {_MODEL: model.getvalue(), SCRIPT: script.encode()})


def _description(part: Region, packages: Iterable[str]) -> str:
    """Return the operators of a region and the versions of packages, for a docstring."""
    versions = "\n".join(f"{name} {version}" for name, version in _versions(packages))
    operators = (f"    {describe(node)}" for node in part.calls)
    return _plain("\n".join(("Operators, as torch runs them:", *operators, "", versions)))


def _write(output: Path, fault: Fault, files: Mapping[str, bytes]) -> Path:
    """Write the files of a reproduction into a new folder, and return the path of the script."""
    try:
        folder = _new_folder(output, fault)
        for name, content in files.items():
            with replacing(str(folder / name)) as file:
                file.write(content)
    except OSError as error:
        what = f"the reproduction cannot be written: {error.strerror or error}"
        raise InputError(what, where=str(output), remedy="give another folder") from error
    return folder / SCRIPT


def _new_folder(output: Path, fault: Fault) -> Path:
    """Create the folder of a fault, with a number if others have the name; raises OSError."""
    name = f"{fault.partition.replace(':', '_')}_{fault.nodes[0].name}"
    for number in itertools.count(1):
        folder = output / (name if number == 1 else f"{name}_{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError  # unreachable


def _title(fault: Fault) -> str:
    """Return a fault in one line."""
    operators = ", ".join(node.operator for node in fault.nodes)
    return f"{fault.kind.name}: {operators} on {fault.place.partition(':')[0]}"


def _array(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array; bfloat16, which NumPy lacks, as float32."""
    array: Array = to_array(tensor.float() if tensor.dtype is torch.bfloat16 else tensor, "")
    return array


def _versions(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    yield "Python", platform.python_version()
    yield platform.system(), platform.machine()
    for package in dict.fromkeys((*packages, "numpy", "torch")):
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _plain(text: str) -> str:
    """Return text for a docstring: names of a model may end it."""
    return text.replace("\\", "/").replace('"""', "'''")
