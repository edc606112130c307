#!/usr/bin/env bash
# XNNPACK in LiteRT returns 3/2 of the square root of large float32 numbers, and NaN for the logistic of 1e30 or -1e30.
#
# Versions: ai-edge-litert 2.3.0, flatbuffers 25.12.19, numpy 2.4.6, CPython 3.11, x86-64 Linux.
# Valid input: finite float32 numbers; models of one operator in the official schema.
# Expected: the root, and 0 and 1 for the logistic function, as LiteRT's own kernels, NumPy and torch return.
# Seen: SQRT is 1.5 times the root from 2^126 (8.5e37) on. LOGISTIC is NaN for magnitudes from about 4e26 to 2.4e38, a
#   range that masks such as -1e30 fall into; it is right for larger numbers and for infinity. No warning appears.
# Output seen:
#   SQRT: 4e+37 gives 6.32456e+18    9e+37 gives 1.42305e+19    3e+38 gives 2.59814e+19
#   LOGISTIC: -3e+38 gives 0    -1e+30 gives nan    -1e+09 gives 0    1e+30 gives nan
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ai-edge-litert==2.3.0 flatbuffers==25.12.19 numpy==2.4.6
cat > "$folder/large.py" <<'PY'
import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl
from ai_edge_litert.interpreter import Interpreter

CASES = {
    "SQRT": ([4e37, 9e37, 3e38], np.sqrt, [True, False, False]),
    "LOGISTIC": ([-3e38, -1e30, -1e9, 1e30], lambda x: (x > 0).astype(np.float64), [True, False, True, False]),
}


def model(name, size):
    def tensor(label):
        made = tfl.TensorT()
        made.shape, made.type, made.buffer, made.name = [size], tfl.TensorType.FLOAT32, 0, label
        return made

    code, operator, graph, whole = tfl.OperatorCodeT(), tfl.OperatorT(), tfl.SubGraphT(), tfl.ModelT()
    code.builtinCode = getattr(tfl.BuiltinOperator, name)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
    operator.opcodeIndex, operator.inputs, operator.outputs = 0, [0], [1]
    graph.tensors, graph.inputs, graph.outputs, graph.operators = [tensor("x"), tensor("y")], [0], [1], [operator]
    whole.version, whole.operatorCodes, whole.subgraphs, whole.buffers = 3, [code], [graph], [tfl.BufferT()]
    builder = flatbuffers.Builder()
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def run(name):
    numbers, exact, _ = CASES[name]
    x = np.array(numbers, np.float32)
    interpreter = Interpreter(model_content=model(name, len(x)))
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    result = interpreter.get_tensor(1)
    print(f"{name}:", *(f"{n:g} gives {r:g}" for n, r in zip(numbers, result)), sep="    ")
    return np.isclose(result, exact(x.astype(np.float64)), rtol=1e-5, atol=1e-30).tolist()


seen = {name: run(name) for name in CASES}
raise SystemExit(0 if seen == {name: right for name, (_, _, right) in CASES.items()} else "the behaviour has changed")
PY
"$folder/venv/bin/python" -W ignore "$folder/large.py"
