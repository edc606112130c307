"""The code of the how-to pages about many rows and many models."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from delegate_ray.aot.jobs import JobsFile

from tests.support.pages import DOCS, blocks, run_page


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / "how-to" / "batch.md")


def test_the_jobs_of_the_page() -> None:
    page = DOCS / "how-to" / "lower-many.md"
    (example,) = (block for block in blocks(page) if block.file == "jobs.yaml")
    assert list(JobsFile.model_validate(yaml.safe_load(example.text)).models) == ["encoder", "mobilenet"]
    keys = {"models", "calibration", "verify", "configurations", "exclude"}
    assert all(f"`{key}`" in page.read_text() for key in keys)
