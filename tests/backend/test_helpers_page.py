"""The page of base classes and helpers: its names exist, and its code runs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch.export import Dim

from delegate.backend.region import Region
from delegate.runtime.backend import BlobFormat
from tests.support.functions import Function
from tests.support.planning import edge, planned, regions, without

TEXT = next((Path(__file__).parents[2] / "docs").rglob("backend-aot.md")).read_text()
(BUILDER,) = re.findall(r"```python\n# acme_delegate/tracing.py\n(.*?)```", TEXT, re.DOTALL)
(SIZES,) = re.findall(r"```python\n(size = .*?)```", TEXT, re.DOTALL)
HELPERS = re.findall(r"^\| `(delegate\.\S+)` \|", TEXT, re.MULTILINE)
CLASSES = [
    f"delegate.{package}.{name}"
    for package, column in (("backend", "| support"), ("runtime", "| job"))
    for rows in re.findall(rf"class {re.escape(column)}.*?\n\|---.*?\n(.*?)\n\n", TEXT, re.DOTALL)
    for row in rows.splitlines()
    for name in re.findall(r"`(\w+\.\w+)`", row.split("|")[1])
]


def region_of(function, *inputs, dynamic=None) -> Region:
    program = edge(Function(function), *inputs, dynamic=dynamic)
    (region,) = regions(planned(program, {"acme": without("nothing")})).values()
    return region


@pytest.mark.parametrize("name", [*HELPERS, *CLASSES])
def test_names(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_there_are_names() -> None:
    assert len(HELPERS) > 20
    assert len(CLASSES) == 11


def test_the_builder() -> None:
    scope: dict[str, object] = {"__name__": "acme"}
    exec(BUILDER, scope)
    ones = torch.ones(2, dtype=torch.int64)
    region = region_of(lambda x: torch.add(x.relu(), ones, alpha=2), torch.ones(2))
    result = scope["AcmeTraced"](scope["Options"]()).preprocess(region)
    assert bytes(BlobFormat("acme", 1).unpack(memoryview(result.blob))).decode().splitlines() == [
        "t0 = input(inputs_0)", "t1 = constant([1, 1])", "t2 = relu.default(t0)", "t3 = cast(t1, torch.float32)",
        "t4 = mul(t3, 2)", "t5 = add(t2, t4)", "t5",
    ]  # fmt: skip


def test_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    dynamic = (({0: Dim("n", min=2, max=64)},),)
    region = region_of(lambda x: torch.cat([x, x]), torch.ones(3, 2), dynamic=dynamic)
    exec(SIZES, {"region": region})
    symbol = str(next(iter(region.range_constraints)))
    shown = [f"2*{symbol}", f"{{{symbol}}}", f"{{{symbol}: VR[2, 64]}}", "(4, 128)", "10"]
    assert capsys.readouterr().out.splitlines() == shown
    told = re.findall(r"# (.*)", SIZES)[1:]
    for mine, theirs in zip(shown, told, strict=True):
        assert theirs.replace("s77", symbol).startswith(mine)
