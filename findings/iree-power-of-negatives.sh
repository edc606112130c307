#!/usr/bin/env bash
# IREE's CPU compiler gives NaN for the power of any negative base and of zero, also with whole exponents.
#
# Versions: iree-base-compiler and iree-base-runtime 3.13.0, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: math.powf of float32 tensors in a linalg.generic, with exponents 3, 2, 0 and -2.
# Expected: pow(-2, 3) = -8, pow(-2, 2) = 4, pow(0, 0) = 1, as C's powf, NumPy and torch, and IREE's own VMVX backend.
# Seen: the llvm-cpu backend gives NaN for each of them, as exp(y log(x)) would. Positive bases are right.
#   Neither a warning nor an error about it appears.
# Output seen:
#   llvm-cpu: pow(-2, 3) = nan    pow(-2, 2) = nan    pow(0, 0) = nan    pow(-1.5, -2) = nan    pow(2, 3) = 8.0
#   vmvx: pow(-2, 3) = -8.0    pow(-2, 2) = 4.0    pow(0, 0) = 1.0    pow(-1.5, -2) = 0.444    pow(2, 3) = 8.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet iree-base-compiler==3.13.0 iree-base-runtime==3.13.0 numpy==2.4.6
cat > "$folder/power.py" <<'PY'
import numpy as np
from iree import compiler, runtime

SOURCE = """
func.func @power(%bases: tensor<5xf32>, %exponents: tensor<5xf32>) -> tensor<5xf32> {
  %empty = tensor.empty() : tensor<5xf32>
  %powers = linalg.generic {
    indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]
  } ins(%bases, %exponents : tensor<5xf32>, tensor<5xf32>) outs(%empty : tensor<5xf32>) {
  ^bb0(%base: f32, %exponent: f32, %unused: f32):
    %power = math.powf %base, %exponent : f32
    linalg.yield %power : f32
  } -> tensor<5xf32>
  return %powers : tensor<5xf32>
}
"""
CASES = [(-2, 3), (-2, 2), (0, 0), (-1.5, -2), (2, 3)]
EXPECTED = {  # backend -> whether each power is right
    "llvm-cpu": [False, False, False, False, True],
    "vmvx": [True, True, True, True, True],
}
bases, exponents = np.array(CASES, np.float32).T.copy()


def run(backend):
    arguments = ["--iree-llvmcpu-target-cpu=generic"] if backend == "llvm-cpu" else []
    module = compiler.compile_str(SOURCE, target_backends=[backend], extra_args=arguments)
    context = runtime.SystemContext(config=runtime.Config("local-sync"))
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, module))
    powers = context.modules.module.power(bases, exponents).to_host()
    print(f"{backend}:", *(f"pow({x:g}, {y:g}) = {power:.3}" for (x, y), power in zip(CASES, powers)), sep="  ")
    return np.isclose(powers, bases**exponents).tolist()


seen = {backend: run(backend) for backend in EXPECTED}
raise SystemExit(0 if seen == EXPECTED else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/power.py"
