"""A headless Chromium for tests of pages; tests that need it are skipped if it is absent."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A running browser of this machine."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("Chromium is not installed: make browser")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield running
        running.close()


class Opened:
    """A page of a report in a browser.

    Args:
        browser: the running browser.
        path: of the HTML file.
        scheme: "light" or "dark".
    """

    def __init__(self, browser: Any, path: Path, scheme: str = "light") -> None:
        self.messages: list[str] = []  # errors and warnings of the page
        self.requests: list[str] = []
        self.page = browser.new_page(viewport={"width": 1300, "height": 800}, color_scheme=scheme)
        self.page.on("console", lambda m: self.messages.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        end = time.monotonic() + 30
        while not self.run("window.delegatePage?.views[0]?.frames > 0"):  # `wait_for_function` may not: it needs eval
            assert time.monotonic() < end
            time.sleep(0.02)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def run(self, script: str) -> Any:
        """Return the result of JavaScript in the page."""
        return self.page.evaluate(script)

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.page.inner_text(selector))

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
