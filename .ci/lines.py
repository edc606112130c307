"""Print the lines of each folder beside its budget in pyproject.toml, and fail if one has more.

A budget is only ever lowered, so a new capability arrives as a plugin, or pays by removing.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def count_lines(folder: Path) -> int:
    """Return the lines of the Python files in a folder and below it, without generated ones."""
    files = (path for path in folder.rglob("*.py") if not path.stem.endswith("_generated"))
    return sum(len(path.read_text().splitlines()) for path in files)


def main() -> int:
    """Return the exit code: 1 if a folder has more lines than its budget, or a folder of delegate/ has none."""
    root = Path(__file__).parents[1]
    budgets: dict[str, int] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["delegate"]["lines"]
    lines = {name: count_lines(root / name) for name in budgets}
    width = max(map(len, budgets))
    for name, budget in budgets.items():
        print(f"{name:{width}} {lines[name]:7,} of {budget:7,}")
    above = [
        f"{name} has {lines[name] - budget} lines above its budget"
        for name, budget in budgets.items()
        if lines[name] > budget
    ]
    folders = {f"delegate/{path.parent.name}" for path in root.glob("delegate/*/__init__.py")}
    above += [f"{name} has no budget in pyproject.toml" for name in sorted(folders - budgets.keys())]
    print(*above, sep="\n", file=sys.stderr)
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
