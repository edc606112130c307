"""The code of the how-to page about serving, on another port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import DOCS, blocks


def test_the_page_runs(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = blocks(DOCS / "how-to" / "serve.md")
    code = {block.file: block.text for block in page if block.file}
    (expected,) = (block.text for block in page if block.kind == "output")
    exec(code["build.py"], {})
    served = serve({"model": Path("model.dlg")}, batch=8)
    assert served.models.by_name["model"].batching.most == 8
    exec(code["client.py"].replace("8000", str(served.port)), {})
    assert capsys.readouterr().out == expected
