"""A report says how far its accuracy can be trusted: not verified, on weak evidence, or on the user's own data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.accuracy.samples import Sample, origin_of
from delegate.report import Report
from delegate.report.rows import InputOrigin

SHAPE = (1, 3, 32, 32)
NOT_VERIFIED = "not verified: no result was compared with torch"
EXAMPLE = "forward: weak evidence, because the inputs are the example inputs of the export"
RANDOM = "forward: weak evidence, because the inputs look random"


def exported(module: nn.Module | None = None) -> torch.export.ExportedProgram:
    return torch.export.export(module or nn.Conv2d(3, 4, 3).eval(), (torch.zeros(SHAPE),))


def picture(seed: int) -> torch.Tensor:
    """Return an image: neighbours have similar values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(SHAPE, generator=generator).cumsum(-1) / 32


def noise(like: Callable[..., torch.Tensor]) -> torch.Tensor:
    return like(SHAPE, generator=torch.Generator().manual_seed(0))


REQUESTS: dict[str, tuple[Any, str, list[InputOrigin]]] = {
    "none": (None, NOT_VERIFIED, []),
    "bounds alone": (delegate.Verify(sqnr_db=30), EXAMPLE, [InputOrigin.EXAMPLE]),
    "normal noise": ((noise(torch.randn),), RANDOM, [InputOrigin.RANDOM]),
    "uniform noise": ([{"input": noise(torch.rand)}], RANDOM, [InputOrigin.RANDOM]),
    "an image": ((picture(0),), "", [InputOrigin.GIVEN]),
    "images and noise": ([(picture(0),), (noise(torch.randn),)], "", [InputOrigin.GIVEN]),
}


@pytest.mark.parametrize(("verify", "sentence", "origins"), REQUESTS.values(), ids=REQUESTS)
def test_every_form_of_the_report_has_the_evidence(
    verify: Any, sentence: str, origins: list[InputOrigin], tmp_path: Path
) -> None:
    program = delegate.to_backend(exported(), "xnnpack", verify=verify, cache=False)
    assert [p.backend for p in program.report.partitions] == ["xnnpack"]
    program.save(tmp_path / "net.dlg")
    with delegate.load(tmp_path / "net.dlg") as loaded:
        reports = [program.report, loaded.report, Report.from_json(program.report.to_json())]
    texts = [text for report in reports for text in (str(report), "\n".join(report.accuracy_lines()))]
    program.report.save_html(tmp_path / "net.html")
    texts.append((tmp_path / "net.html").read_text())
    for text in texts:
        assert sentence in text
        assert ("not verified: no" in text, "weak evidence, because" in text) == (
            sentence == NOT_VERIFIED,
            sentence in (EXAMPLE, RANDOM),
        )
    for report in reports:
        data = json.loads(report.to_json())
        assert data["unverified"] == ([] if origins else ["forward"])
        assert [InputOrigin(row["inputs"]) for row in data["accuracy"]] == origins


def test_the_evidence_of_quantized_programs_is_on_both_references() -> None:
    config = {"backends": ["xnnpack"], "quantization": {"scheme": "dynamic_int8"}, "verify": {"sqnr_db": 1}}
    report = delegate.to_backend(exported(nn.Linear(32, 32).eval()), config=config).report
    assert [row.inputs for row in report.accuracy] == [InputOrigin.EXAMPLE] * 2
    assert sum("weak evidence" in line for line in report.accuracy_lines()) == 1


def test_methods_have_their_own_evidence() -> None:
    models = {"a": exported(), "b": exported(), "c": exported()}
    verify = {"a": (picture(0),), "b": (noise(torch.randn),)}
    report = delegate.to_backend(models, "xnnpack", verify=verify).report
    assert report.unverified == ("c",)
    weak, missing = report.evidence_lines()
    assert weak.startswith("b: weak evidence")
    assert missing == "c: not verified, no inputs were given for it"


def test_what_cannot_be_compared_is_no_weak_evidence() -> None:
    class Random(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    report = delegate.to_backend(exported(Random()), [], verify=(picture(0),)).report
    (line,) = report.accuracy_lines()
    assert "random numbers" in line


def test_a_plan_is_not_verified() -> None:
    assert NOT_VERIFIED in str(delegate.explain(exported(), "xnnpack"))


def spread(values: torch.Tensor) -> torch.Tensor:
    """Return values in the order of a shuffle, so that neighbours are not correlated."""
    return values.flatten()[torch.randperm(values.numel(), generator=torch.Generator().manual_seed(1))]


# Values of which none is like those of torch.randn or torch.rand.
OTHERS: dict[str, torch.Tensor] = {
    "few": torch.randn(999),
    "constants": torch.zeros(2000),
    "a ramp": torch.linspace(0, 1, 2000),
    "an image": picture(1),
    "pixels of an image": spread(picture(1)),
    "of another range": torch.rand(2000) * 255,
    "after a ReLU": torch.randn(2000).relu(),
    "NaN": torch.full((2000,), torch.nan),
    "infinity": torch.full((2000,), torch.inf),
    "integers": torch.randint(0, 2, (2000,)),
    "nothing": torch.zeros(0),
}


@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS)
def test_other_values_do_not_look_random(values: torch.Tensor) -> None:
    assert origin_of([Sample((values, 3), {"scale": 2.0})]) is InputOrigin.GIVEN


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1000, 150_000])
def test_random_values(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(0)
    for values in (torch.randn(size, dtype=dtype), torch.rand(size, dtype=dtype)):
        assert origin_of([Sample((values, torch.arange(4)))]) is InputOrigin.RANDOM
