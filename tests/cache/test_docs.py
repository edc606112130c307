"""The code in docs/reference/compile-cache.md runs."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "compile-cache.md").read_text()


def test_the_documented_code(folder):
    first, hook = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(first, {})
    assert len(list((folder / "artifacts").iterdir())) == 2  # the partition and the program

    class Base:
        def cache_key(self) -> str | None:
            return "host"

    names: dict[str, object] = {"Base": Base}
    body = "".join(f"    {line}\n" for line in hook.replace("super()", "super(Acme, self)").splitlines())
    exec(f"import os\nclass Acme(Base):\n{body}", names)
    assert names["Acme"]().cache_key() == "host; None"
