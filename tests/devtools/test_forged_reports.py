"""Reports of strangers: every value is replaced in turn; a report is refused, or every form of it is made."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from delegate.devtools.export_graph import dot, model_explorer, node_data, onnx_model
from delegate.devtools.page.html import page
from delegate.errors import ProgramError
from delegate.report import Report
from tests.devtools.page.reports import report

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
        for export in (model_explorer, dot):
            export(forged, "forged")
        node_data(forged)
        if len(forged.methods) == 1:
            onnx_model(forged, "forged")
        made += 1
    assert made
