"""The page of `delegate report`: its size, its time until it reacts, and frames a second, in headless Chromium.

    python -m benchmarks.report_page [--keep FOLDER]

The time runs from the start of the navigation to the first painted graph, when the page takes keys. Frames are counted
over two seconds in which every frame moves and zooms the graph: as the page opens, and with every group expanded.
`--keep` leaves the pages and pictures of them in a folder.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import delegate
from tests.support.zoo import _torchvision

ROUNDS = 5
_INTERACTIVE = """() => new Promise((done) => {
    const check = () => (window.delegatePage?.views[0]?.frames ? done(performance.now()) : setTimeout(check, 5));
    check();
})"""
_FRAMES = """() => new Promise((done) => {
    const view = delegatePage.views[0], start = performance.now(), first = view.frames, scale = view.scale;
    const step = () => {
        const t = performance.now() - start;
        if (t > 2000) { done((view.frames - first) / (t / 1000)); return; }
        view.tx -= 2; view.ty -= 8; view.zoom(t % 1000 < 500 ? 0.98 : 1 / 0.98);
        requestAnimationFrame(step);
    };
    step();
})"""


class _Block(nn.Module):
    """Nine operators, one of which stays portable."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(size, size), nn.Linear(size, size), nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(self.norm(x))).sort()[0]
        return x + torch.tanh(self.second(y) * 2 + 1)


def _deep() -> nn.Module:
    """A model of 25 stages of 25 blocks: 5,625 nodes."""
    return nn.Sequential(*(nn.Sequential(*(_Block(16) for _ in range(25))) for _ in range(25)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "swin_t": (lambda: _torchvision("swin_t"), (1, 3, 224, 224)),
    "5,625 nodes": (_deep, (2, 16)),
}


def _write(name: str, folder: Path) -> Path:
    build, shape = MODELS[name]
    torch.manual_seed(0)
    exported = torch.export.export(build().eval(), (torch.randn(shape),))
    path = folder / f"{name}.html"
    delegate.to_backend(exported, "xnnpack").report.save_html(path, name=name)
    return path


def _measure(browser: Any, path: Path, pictures: Path | None) -> dict[str, float]:
    """Return the medians over the rounds."""
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(path.as_uri(), wait_until="commit")
        row = {"interactive s": page.evaluate(_INTERACTIVE) / 1000}
        if pictures:
            page.screenshot(path=pictures / f"{path.stem}.png")
        row["frames a second"] = page.evaluate(_FRAMES)
        row["expand all s"] = page.evaluate(
            "() => { const start = performance.now();"
            " delegatePage.views[0].key(new KeyboardEvent('keydown', {key: 'e'}));"
            " return (performance.now() - start) / 1000 }"
        )
        page.evaluate("() => delegatePage.views[0].fitAll()")
        row["frames a second, expanded"] = page.evaluate(_FRAMES)
        if pictures:
            page.screenshot(path=pictures / f"{path.stem}, expanded.png")
        rounds.append(row)
        page.close()
    return {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}


def main() -> None:
    """Print a row per model."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder for the pages and pictures of them")
    keep: Path | None = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in MODELS:
            path = _write(name, keep or Path(temporary))
            row = _measure(browser, path, keep)
            cells = ", ".join(f"{key}: {value:.2f}" for key, value in row.items())
            print(f"{name}: {path.stat().st_size / 1e6:.2f} MB, {cells}")
        browser.close()


if __name__ == "__main__":
    main()
