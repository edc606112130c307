"""The code in docs/how-to/torch-compile.md and the README runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from delegate_torch_compile.backend import compile_graph

from tests.support.sources import ROOT


def read_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def _register_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.backends import registry

    monkeypatch.setitem(registry._BACKENDS, "delegate", None)  # where this checkout is not the one installed
    monkeypatch.setitem(registry._COMPILER_FNS, "delegate", compile_graph)


def test_the_page() -> None:
    inference, training, dialect = read_blocks("docs/how-to/torch-compile.md")
    names: dict[str, Any] = {}
    exec(inference, names)
    assert names["y"].shape == (3, 4)
    exec(training, names)
    assert names["losses"][-1] < 0.9 * names["losses"][0]
    exec(dialect, names)


def test_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    exec(read_blocks("README.md")[-1], {})
    assert capsys.readouterr().out == "torch.Size([2, 4])\n"
