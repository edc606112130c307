"""Reproductions: a folder with a script that shows a fault with the vendor's library alone."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from delegate.backends.aot import Region, Reproduction
from delegate.compiled import to_array
from delegate.devtools.debugger.recording import RecordedCall
from delegate.edge.node import describe
from delegate.errors import InputError
from delegate.files import replacing
from delegate.runtime.backend import Array

SCRIPT = "reproduce.py"
_TENSORS = "tensors.npz"
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


def write_reproduction(folder: Path, way: Reproduction, title: str, part: Region, call: RecordedCall) -> Path:
    """Write a script, the vendor's files and the tensors into a folder, and return the path of the script.

    Args:
        folder: is created.
        way: runs the artifact.
        title: the fault in one line.
        part: the region of the artifact.
        call: the inputs of the region, and the results of the library and of torch.

    Raises:
        InputError: the folder cannot be written.
    """
    versions = "\n".join(f"{name} {version}" for name, version in _versions(way.packages))
    operators = (f"    {describe(node)}" for node in part.calls)
    description = _plain("\n".join(("Operators, as torch runs them:", *operators, "", versions)))
    count = len(call.inputs)
    script = _TEMPLATE.format(title=_plain(title), description=description, code=way.code, inputs=count)
    arrays = {f"input{n}": _array(t) for n, t in enumerate(call.inputs)}
    arrays |= {f"actual{n}": _array(t) for n, t in enumerate(call.actual)}
    arrays |= {f"expected{n}": _array(t) for n, t in enumerate(call.expected)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in way.files.items():
            with replacing(str(folder / name)) as file:
                file.write(content)
        with replacing(str(folder / _TENSORS)) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        with replacing(str(folder / SCRIPT)) as file:
            file.write(script.encode())
    except OSError as error:
        what = f"the reproduction cannot be written: {error.strerror or error}"
        raise InputError(what, where=str(folder), remedy="give another folder") from error
    return folder / SCRIPT


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
