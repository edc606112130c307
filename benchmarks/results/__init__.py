"""Results of benchmarks as JSON: the tables of docs/explanation/benchmarks.md that a test compares with these files."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    """A table as it is printed.

    Args:
        columns: their titles.
        rows: a cell per column, numbers with the digits that are printed.
    """

    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = (self.columns, *self.rows)
        head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
        return "\n".join((head, "|" + "---|" * len(self.columns), *body)).replace("|  |", "| |").replace("|  |", "| |")


@dataclass(frozen=True)
class Results:
    """What one run of a benchmark gave.

    Args:
        date: of the run, as YYYY-MM-DD.
        machine: the processor and what else is known of the machine.
        versions: library -> version.
        command: that ran it.
        tables: by name.
        note: what else a reader has to know of the run.
    """

    date: str
    machine: str
    versions: dict[str, str]
    command: str
    tables: dict[str, Table]
    note: str = ""

    @classmethod
    def of_this_run(cls, libraries: Sequence[str], tables: dict[str, Table]) -> Results:
        """Return the results of a run that ends now, on this machine."""
        machine = f"{platform.processor() or platform.machine()}, {platform.system()}"
        module = sys.modules["__main__"].__spec__
        command = " ".join(["python -m", module.name if module else Path(sys.argv[0]).stem, *sys.argv[1:]])
        versions = {name: version(name) for name in libraries} | {"python": platform.python_version()}
        return cls(time.strftime("%Y-%m-%d"), machine, versions, command, tables)

    def save(self, path: str | Path) -> None:
        """Write the results as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read what `save` wrote."""
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(**{**data, "tables": {name: Table(**table) for name, table in data["tables"].items()}})
