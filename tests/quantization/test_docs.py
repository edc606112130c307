"""The code in docs/how-to/quantization.md runs, its table has every scheme, and its configurations are valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from delegate.config import load_config
from tests.support import zoo

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from delegate.quantization import schemes

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
TEXT = (HOW_TO / "quantization.md").read_text()


def test_the_documented_code(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with zoo.libraries():
        for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
            exec(code, names)
    assert "1 partition on xnnpack, 100% of the operations" in capsys.readouterr().out
    assert names["program"].report.partitions


def test_the_documented_configuration(tmp_path: Path) -> None:
    pytest.importorskip("delegate_onnxruntime", reason="a configuration names the backend onnxruntime")
    expected = [("static_int8", {"head": "off"}), ("auto", {})]
    measured = (HOW_TO / "scheme-by-measurement.md").read_text()
    texts = re.findall(r"```yaml\n(.*?)```", TEXT + measured, re.DOTALL)
    for text, (scheme, modules) in zip(texts, expected, strict=True):
        (tmp_path / "c.yaml").write_text(text)
        section = load_config(tmp_path / "c.yaml").quantization
        assert section is not None
        assert (section.scheme, section.modules) == (scheme, modules)


def test_the_table_has_every_scheme() -> None:
    assert re.findall(r"^\| `(\w+)`", TEXT, re.MULTILINE) == list(schemes("xnnpack"))
