"""The code in docs/reference/operators.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from delegate import DType

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "operators.md").read_text()


def test_the_documented_kernel() -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "KernelTable" in block]
    namespace: dict[str, object] = {}
    exec(code, namespace)
    kernel = namespace["table"].find("mylib.scale.default", {DType.float64})
    out = np.empty(2)
    kernel.function(np.array([1.0, 2.0]), 3.0, out=out)
    assert out.tolist() == [3.0, 6.0]
