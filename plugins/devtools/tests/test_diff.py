"""`delegate diff`, the differences of programs, and the first NaN of `delegate run`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from delegate_devtools.diff import differences

import delegate
from delegate.program.instructions import strip_debug_info
from tests.support.commands import call
from tests.support.programs import static

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
    torch.export.save(torch.export.export(net, (X,)), "net.pt2")


def test_weights_that_differ() -> None:
    torch.manual_seed(1)
    other = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
    torch.export.save(torch.export.export(other, (X,)), "other.pt2")
    for name in ("net", "other"):
        call("lower", f"{name}.pt2", "-b", "xnnpack", "-o", f"{name}.dlg")
    lines = call("diff", "net.dlg", "other.dlg")[0].splitlines()
    assert lines[0] == "weights: 2 differences"
    assert lines[1].startswith("  forward 0.weight: torch.float32[8, 8], crc32 ")


def test_diff() -> None:
    for backend, path in (("xnnpack", "a.dlg"), ("portable", "b.dlg")):
        call("lower", "net.pt2", "-b", backend, "-o", path)
    assert call("diff", "a.dlg", "a.dlg")[0] == "the programs are equal\n"
    np.save("x.npy", X.numpy())
    lines = call("diff", "a.dlg", "b.dlg", "--inputs", "x.npy")[0].splitlines()
    assert lines[:3] == [
        "placement: 2 differences",
        "  forward linear (aten.linear.default): xnnpack -> portable",
        "  forward tanh (aten.tanh.default): xnnpack -> portable",
    ]
    assert any(line.startswith("output 0: SQNR ") for line in lines)
    assert lines[-1].startswith("median time: a.dlg ")
    runs = json.loads(call("diff", "a.dlg", "b.dlg", "--inputs", "x.npy", "--json")[0])["runs"]
    (output,) = runs["forward"]["values"]
    assert output["sqnr_db"] > 80
    assert not output["is_equal"]
    assert set(runs["forward"]["median_ms"]) == {"a.dlg", "b.dlg"}
    (output,) = json.loads(call("diff", "a.dlg", "a.dlg", "--inputs", "x.npy", "--json")[0])["runs"]["forward"][
        "values"
    ]
    assert (output["is_equal"], output["sqnr_db"], output["greatest_difference"]) == (True, None, 0.0)
    Path("b.dlg").write_bytes(b"damaged")
    assert "b.dlg" in call("diff", "a.dlg", "b.dlg", code=1)[1]


class Counter(torch.nn.Module):
    """A sum of its inputs, each times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("total", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += self.factor * x
        return x + 1


def test_diff_compares_states_and_needs_a_method_of_several() -> None:
    np.save("x.npy", X.numpy())
    counters = [torch.export.export(Counter(factor), (X,)) for factor in (1.0, 2.0)]
    for path, counter in zip(("a.dlg", "b.dlg"), counters, strict=True):
        delegate.to_backend(counter, []).save(path)
    delegate.to_backend({"once": counters[0], "twice": counters[0]}, []).save("two.dlg")
    lines = call("diff", "a.dlg", "b.dlg", "--inputs", "x.npy")[0].splitlines()
    assert "output 0: SQNR exact, greatest difference 0" in lines
    assert any(line.startswith("state total: SQNR 0.0 dB") for line in lines)
    error = call("diff", "two.dlg", "two.dlg", "--inputs", "x.npy", code=1)[1]
    assert "several methods: once, twice (--inputs): name the one to run with --method" in error
    assert "exact" in call("diff", "two.dlg", "two.dlg", "--inputs", "x.npy", "--method", "twice")[0]


@pytest.mark.parametrize(
    ("backend", "first"), [("xnnpack", "partition xnnpack_0 on xnnpack"), ("portable", "aten.log")]
)
def test_run_names_the_first_nan(backend: str, first: str) -> None:
    class Log(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.abs().add(1).neg().log().tanh() + 1

    torch.export.save(torch.export.export(Log(), (X,)), "log.pt2")
    call("lower", "log.pt2", "-b", backend, "-o", "log.dlg")
    (line,) = [line for line in call("run", "log.dlg")[0].splitlines() if "NaN is first" in line]
    assert line.startswith(f"note: NaN is first in {first}")


def test_a_stripped_program_differs_in_its_debug_info_alone():
    found = differences(static(), strip_debug_info(static()))
    assert set(found.sections) == {"versions"}
    (change,) = found.sections["versions"]
    assert (change.name, change.before, change.after) == ("debug info", "present", "none")
    assert not differences(strip_debug_info(static()), strip_debug_info(static())).sections
