"""Reports of strangers: every value replaced in turn, reports of many rows, and the work that a form of one takes."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from delegate.errors import ProgramError
from delegate.report import Report
from tests.support.reports import report

ODD = (None, True, -1, 2**70, 1.5, "", "nan", "-inf", "\ud800\x1b</script>", [], [[]], {}, {"x": 1})


def places(value, path=()):
    """Yield the path of every value in JSON data."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(data, path, odd):
    """Return a copy of the data with another value at a path."""
    if not path:
        return odd
    data = copy.deepcopy(data)
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = odd
    return data


def forged_reports(odd: object) -> Iterator[Report]:
    """Yield the small report with each of its values replaced in turn, if it can be read."""
    whole = report()
    data = json.loads(replace(whole, nodes=whole.nodes[:4], memory=()).to_json())
    for path in places(data):
        try:
            yield Report.from_json(json.dumps(changed(data, path, odd)))
        except ProgramError:
            continue


def node(method, name, **fields):
    return {
        "method": method, "name": name, "op": "a", "backend": "portable", "partition": "", "verdicts": {}, "result": "",
        "source": "", "module": "", "work": 0.0, **fields,
    }  # fmt: skip


def partition(method, name, **fields):
    row = {"nodes": [], "bytes_in": 0, "bytes_out": 0, "work": 0.0, "notes": []}
    return {"method": method, "name": name, "backend": "a", **row, **fields}


def written(methods, nodes, partitions=()):
    data = {"format": 1, "methods": methods, "nodes": nodes, "partitions": list(partitions), "notes": []}
    return json.dumps(data)


COUNT = 3000
NO = {"reason": "too large", "message": "", "remedy": "", "tag": ""}
MANY = {  # reports of many rows of one kind
    "methods": lambda i: ([f"m{i}" for i in range(i)], [node(f"m{j}", "n") for j in range(i)], ()),
    "partitions": lambda i: (["m"], [], [partition("m", f"p{j}", backend=f"b{j}") for j in range(i)]),
    "methods with partitions": lambda i: (
        [f"m{j}" for j in range(i)], [], [partition(f"m{j}", "p", backend=f"b{j}") for j in range(i)],
    ),
    "backends": lambda i: (["m"], [node("m", f"n{j}", backend=f"b{j}", verdicts={f"c{j}": NO}) for j in range(i)], ()),
    "a long name": lambda i: (["m"], [node("m", "x" * 100 * i), *(node("m", f"n{j}") for j in range(i))], ()),
    "a long reason": lambda i: (
        ["m"], [node("m", f"n{j}", verdicts={"b": NO | {"message": "y" * 100 * i * (not j)}}) for j in range(i)], (),
    ),
    "inputs": lambda i: (["m"], [node("m", f"n{j}", inputs=["x"] * 10) for j in range(i)], ()),
}  # fmt: skip


def require_proportion(kind: str, forms: Sequence[Callable[[Report], bytes]]) -> None:
    """Fail unless twice as many rows take about twice the calls of Python, and each form has a size in proportion."""
    counts = []
    for count in (COUNT // 2, COUNT):
        text = written(*MANY[kind](count))
        forged = Report.from_json(text)
        calls = 0

        def counting(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(counting)
        try:
            sizes = [len(form(forged)) for form in forms]
        finally:
            sys.setprofile(None)
        assert max(sizes) < 10 * len(text)
        counts.append(calls)
    assert counts[1] < 2.2 * counts[0] + 1000
