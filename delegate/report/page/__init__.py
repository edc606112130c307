"""The report as one HTML page: a template with the style, the library that lays out graphs, the script, and the data.

The data comes from untrusted files, so it is JSON without `<`, `>` and `&`, which the script reads as text and shows as
text. A content security policy allows the two scripts of the page by their hashes, and nothing from the network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from importlib import resources
from typing import Any

from delegate.common.files import replacing, require_file, with_short_paths
from delegate.errors import DelegateError

_SCRIPTS = ("model", "layout", "map", "view", "panels", "layers", "faults", "main")
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def page(reports: Sequence[dict[str, Any]]) -> str:
    """Return the page of one report, or of two side by side.

    Args:
        reports: results of `delegate.report.page.data.report_data`.
    """
    data = json.dumps({"reports": reports}, separators=(",", ":"), allow_nan=False)
    data = with_short_paths(data).translate(_ESCAPES)  # a diagnosis has the paths of its scripts
    library = _file("vendor/dagre.min.js").partition("//# sourceMappingURL")[0]
    script = "\n".join(['"use strict";', "{", *(_file(f"script/{name}.js") for name in _SCRIPTS), "}"])
    parts = {
        "title": html.escape(" and ".join(report["name"] for report in reports)),
        "hashes": " ".join(f"'sha256-{_hash(text)}'" for text in (library, script)),
        "style": _file("page.css"),
        "licence": _file("vendor/dagre.LICENSE"),
        "library": library,
        "script": script,
        "data": data,
    }
    template = _file("page.html").split("@@")  # text, name of a part, text, ...
    return "".join(parts[text] if number % 2 else text for number, text in enumerate(template))


def frame(text: str) -> str:
    """Return a page in a frame without rights, for notebooks."""
    style = "width:100%;height:720px;border:1px solid #8884"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(text)}"></iframe>'


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Write a page: completely, or not at all.

    Raises:
        DelegateError: the file cannot be written, and an old file of that name is then unchanged.
    """
    require_file(path, "the report", DelegateError)
    try:
        with replacing(os.path.realpath(path)) as file:
            file.write(text.encode())
    except (OSError, ValueError) as error:
        what = f"the report cannot be written: {getattr(error, 'strerror', None) or error}"
        remedy = "name a file that you may write, on a disk with free space"
        raise DelegateError(what, where=os.fspath(path), remedy=remedy) from error


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
