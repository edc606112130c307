"""nvcc for the software GPU: it makes of CUDA's source a shared object that `libcuda.so.1` beside it runs.

python nvcc.py [options of nvcc] -o RESULT SOURCE; only -o and the source are looked at. SOFTWARE_CUDA names the folder
that `build.py` made.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+)\) (\w+)\(([^)]*)\);')
_ENTRIES = """
extern "C" {{
extern char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));
}}
#include "software.h"
extern "C" __attribute__((visibility("default"))) const Kernel software_kernels[] = {{
{rows}
{{}}}};
"""


def translate(source: str) -> str:
    """The source, with a table of its kernels behind it."""
    rows = [_row(*found.groups()) for found in _KERNEL.finditer(source)]
    for nvccs, gccs in (("extern __shared__", "extern"), ("__shared__ alignas(64)", "alignas(64) __shared__")):
        source = source.replace(nvccs, gccs)
    return source + _ENTRIES.format(rows="\n".join(rows))


def _row(threads: str, name: str, declared: str) -> str:
    types = [parameter.rpartition(" ")[0].strip() for parameter in declared.split(",") if parameter.strip()]
    kinds = "".join("p" if "*" in each else "v" for each in types)
    given = ", ".join(f"*({each.replace('__restrict__', '')}*)a[{n}]" for n, each in enumerate(types))
    call = f"[](void** a) {{ {name}({given}); }}"
    return f'{{"{name}", {call}, {threads}, "{kinds}", __start_cuda_shared, __stop_cuda_shared}},'


def main(arguments: list[str]) -> int:
    built = Path(os.environ["SOFTWARE_CUDA"])
    result, source = arguments[arguments.index("-o") + 1], Path(arguments[-1])
    made = source.with_suffix(".cpp")
    made.write_text(translate(source.read_text()))
    include = [f"-I{folder}" for folder in (_HERE, (built / "include").resolve())]
    checked = ["-fsanitize=alignment", "-fno-sanitize-recover=all"]
    options = [
        "-std=c++17",
        "-O1",
        "-ftree-vectorize",
        "-march=native",
        "-shared",
        "-fPIC",
        "-w",
        *checked,
        "-include",
        "device.h",
    ]
    return subprocess.run(
        ["g++", *options, *include, "-o", result, str(made), "-l:libcuda.so.1", f"-L{built / 'lib'}"], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
