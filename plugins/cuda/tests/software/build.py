"""Builds the software GPU with g++ and CUDA's headers: python build.py FOLDER."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_LIBRARIES = {"libcuda.so.1": ("driver.cpp",), "libcudart.so.13": ("runtime.cpp", "-l:libcuda.so.1")}


def build(folder: Path) -> dict[str, str]:
    """Build it into a folder, and give the variables of the environment that have a new process find it."""
    lib, include = folder / "lib", _headers()
    lib.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "include").symlink_to(include)
    for name, (source, *others) in _LIBRARIES.items():
        script = folder / f"{name}.map"
        script.write_text(
            f"{name} {{ cu*; software_*; threadIdx; blockIdx; blockDim; gridDim; buf_dyn_shmem_ptr; }};\n"
        )
        subprocess.run(
            ["g++", "-std=c++17", "-O2", "-Wall", "-shared", "-fPIC", f"-I{include}", f"-I{_HERE}", f"-L{lib}",
             f"-Wl,-soname,{name}", f"-Wl,--version-script,{script}", "-o", lib / name, _HERE / source, *others],
            check=True,
        )  # fmt: skip
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{_HERE / "nvcc.py"}" "$@"\n')
    nvcc.chmod(0o755)
    return {"SOFTWARE_CUDA": str(folder), "LD_LIBRARY_PATH": str(lib), "PATH": str(folder / "bin")}


def _headers() -> Path:
    said = subprocess.run(
        ["nvcc", "--dryrun", "-c", "-x", "cu", "/dev/null"], check=True, capture_output=True, text=True
    ).stderr
    found = re.search(r"^#\$ TOP=(.*)$", said, re.MULTILINE)
    assert found is not None
    return (Path(found[1]) / "include").resolve()


if __name__ == "__main__":
    for variable, value in build(Path(sys.argv[1]).absolute()).items():
        sys.stdout.write(f"export {variable}={value}{':$' + variable if variable != 'SOFTWARE_CUDA' else ''}\n")
