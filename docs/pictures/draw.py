"""Draw the picture of README.md in both colour schemes: python -m docs.pictures.draw

The model is a text encoder on two backends. XNNPACK has no lookup of token embeddings, so ONNX Runtime runs it.
The script requires the plugin onnxruntime, transformers, playwright and Chromium (`make plugins browser`).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import delegate
from delegate.report.page import page, write
from tests.support import zoo

HERE = Path(__file__).parent
BACKENDS = ["xnnpack", "onnxruntime"]
# The lookup of embeddings, whose details give XNNPACK's reason; the view stays.
_SELECT = "(() => { const v = delegatePage.views[0]; v.select(v.graph.byName.get('embedding')); })()"
WIDTH, HEIGHT = 1100, 720  # CSS pixels


def report_page(file: Path) -> None:
    """Lower the model and write its report as a page."""
    program = delegate.to_backend(zoo.export("bert_mini"), BACKENDS)
    write(page([program.report.page_data("text encoder")]), file)


def draw(file: Path, scheme: str) -> None:
    """Write the picture of the page in a colour scheme, "light" or "dark"."""
    executable = shutil.which("chromium")
    if executable is None:
        sys.exit("Chromium is not installed: make browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
        opened.goto(file.as_uri())
        opened.wait_for_function("window.delegatePage?.views[0]?.frames > 0")
        opened.evaluate(_SELECT)
        opened.wait_for_timeout(500)
        opened.screenshot(path=HERE / f"report-{scheme}.png")
        browser.close()


def main() -> None:
    """Draw both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        report_page(file)
        for scheme in ("light", "dark"):
            draw(file, scheme)


if __name__ == "__main__":
    main()
