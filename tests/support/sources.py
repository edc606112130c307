"""The source files of the tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules() -> list[Path]:
    """Return the modules of the tests, here and in plugins/."""
    return sorted(path for tests in (ROOT / "tests", *ROOT.glob("plugins/*/tests")) for path in tests.rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the name of a module, e.g. "tests.e2e.test_models"."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
