"""The code of the how-to page about serving, on another port."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from delegate_serve.config import ModelKeys, ReplicaKeys, read
from delegate_serve.runtime.settings import Replicas

from tests.support.pages import DOCS, blocks


def test_the_page_runs(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = blocks(DOCS / "how-to" / "serve.md")
    code = {block.file: block.text for block in page if block.file}
    (expected,) = (block.text for block in page if block.kind == "output")
    exec(code["build.py"], {})
    served = serve({"model": Path("model.dlg")}, batch=8, shared_memory="images-")
    assert served.models.by_name["model"].batching.most == 8
    exec(code["client.py"].replace("8000", str(served.port)), {})
    assert capsys.readouterr().out == expected
    shared, result = (
        block.text for block in blocks(DOCS / "how-to" / "serve-shared-memory.md") if block.kind != "text"
    )
    exec(shared.replace("8000", str(served.port)).replace("images-1", f"images-{os.getpid()}"), {})
    assert capsys.readouterr().out == result


def test_the_configuration_of_the_page(programs: dict[str, Path], tmp_path: Path) -> None:
    """The file is valid, and the page names all keys of a model."""
    page = DOCS / "how-to" / "serve-fleet.md"
    example, telemetry = (block for block in blocks(page) if block.file == "server.yaml")
    (tmp_path / "server.yaml").write_text(example.text)
    (tmp_path / "model.dlg").symlink_to(programs["net"])
    config = read(tmp_path / "server.yaml", {}, {})
    assert list(config.files()) == ["small", "large"]
    (tmp_path / "server.yaml").write_text(example.text + telemetry.text)
    assert read(tmp_path / "server.yaml", {}, {}).telemetry is not None
    assert config.files()["large"].settings.timeout == 30
    assert all(f"`{key}`" in page.read_text() for keys in (ModelKeys, ReplicaKeys) for key in keys.model_fields)
    (fleet,) = (block for block in blocks(page) if block.file == "fleet.yaml")
    (tmp_path / "server.yaml").write_text(fleet.text.replace("/shared/", f"{tmp_path}/"))
    for name in ("large", "german", "french"):
        (tmp_path / f"{name}.dlg").symlink_to(programs["net"])
    files = read(tmp_path / "server.yaml", {}, {}).files()
    assert files["large"].replicas == Replicas(min=2, max=8, cpus=2, target=16)
    assert files["french"].replicas == Replicas(cpus=2, target=16, group="languages")
