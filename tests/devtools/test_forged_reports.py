"""Reports of strangers: every value is replaced in turn; a report is refused, or every form of it is made."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace

import pytest

from delegate.devtools.export_graph import dot, model_explorer, node_data, onnx_model
from delegate.devtools.page import page
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


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_every_value_in_turn(odd):
    whole = report()
    small = replace(whole, nodes=whole.nodes[:4], memory=())
    data = json.loads(small.to_json())
    made = 0
    for path in places(data):
        try:
            forged = Report.from_json(json.dumps(changed(data, path, odd)))
        except ProgramError:
            continue
        assert page([forged.page_data("forged")]).endswith("</html>\n")
        assert Report.from_json(forged.to_json()).to_json() == forged.to_json()
        assert len(forged.nodes_table().lines()) == len(forged.nodes) + 1
        assert str(forged)
        for export in (model_explorer, dot):
            export(forged, "forged")
        node_data(forged)
        if len(forged.methods) == 1:
            onnx_model(forged, "forged")
        made += 1
    assert made or odd == [[]]  # which no field may be


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


@pytest.mark.parametrize("kind", MANY)
def test_what_a_report_becomes_is_in_proportion(kind):
    """Twice as many rows take about twice the calls of Python, and each form has a size in proportion to the report."""
    counts = []
    for count in (COUNT // 2, COUNT):
        text = written(*MANY[kind](count))
        forged = Report.from_json(text)
        calls = 0

        def counting(*_):
            nonlocal calls
            calls += 1

        sys.setprofile(counting)
        try:
            forms = [str(forged).encode(), str(forged.nodes_table()).encode(), model_explorer(forged, "forged")]
            forms += [dot(forged, "forged"), *node_data(forged).values(), json.dumps(forged.page_data("x")).encode()]
        finally:
            sys.setprofile(None)
        assert max(map(len, forms)) < 10 * len(text)
        counts.append(calls)
    assert counts[1] < 2.2 * counts[0] + 1000


def test_two_methods_of_one_name():
    with pytest.raises(ProgramError, match="two methods have the name 'm'"):
        Report.from_json(written(["m", "m"], []))


@pytest.mark.parametrize(
    "result", ["float32[\u00b2]", f"float32[{'9' * 30}]", f"float32[{'9' * 5000}]", "float32[-1, x]"]
)
def test_sizes_that_onnx_does_not_have(result):
    assert onnx_model(Report.from_json(written(["m"], [node("m", "n", result=result)])), "x")
