"""The code in docs/how-to/torch-compile.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from delegate.dynamo.backend import compile_graph

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "torch-compile.md").read_text()


def test_the_documented_code(monkeypatch) -> None:
    from torch._dynamo.backends import registry

    monkeypatch.setitem(registry._BACKENDS, "delegate", None)  # where this checkout is not the one installed
    monkeypatch.setitem(registry._COMPILER_FNS, "delegate", compile_graph)
    inference, training, dialect = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(inference, names)
    assert names["y"].shape == (3, 4)
    exec(training, names)
    assert names["losses"][-1] < 0.9 * names["losses"][0]
    exec(dialect, names)
