"""A backend of somebody else's package: found by its entry point, used from to_backend to another process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import ConfigError
from tests.support.lowering import assert_same
from tests.support.plugins import Site
from tests.support.processes import AHEAD_OF_TIME, run

RUN = """
import numpy as np
import delegate
a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 0.5, np.float32)
with delegate.load(sys.argv[1]) as program:
    print(program(a, b).tolist(), sorted({p.backend for p in program.report.partitions}))
"""


class Net(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a + b) * 2


A, B = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 0.5)


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Net(), (A, B))


@pytest.mark.extended
@pytest.mark.parametrize("request_", ["adder", ["adder", "xnnpack"]], ids=["alone", "with xnnpack"])
def test_from_to_backend_to_another_process(site: Site, tmp_path, request_):
    site.backend("adder")
    program = delegate.to_backend(exported(), request_)
    add = next(n for n in program.report.nodes if n.op == "aten.add.Tensor")
    assert add.backend == "adder"
    assert {n.backend for n in program.report.nodes if n is not add} == {
        "xnnpack" if "xnnpack" in request_ else "portable"
    }
    assert_same(program(A, B), Net()(A, B))
    program.save(tmp_path / "sum.dlg")
    done = run(RUN, tmp_path / "sum.dlg", absent=AHEAD_OF_TIME, path=str(site.root))
    backends = sorted({"adder", *([] if request_ == "adder" else ["xnnpack"])})
    assert (done.returncode, done.stdout) == (0, f"{Net()(A, B).tolist()} {backends}\n"), done.stderr

    elsewhere = run(RUN, tmp_path / "sum.dlg")
    assert elsewhere.returncode == 1
    where = "partition adder_0 of adder in method forward"
    assert f"BackendNotFound: no backend is named 'adder' ({where})" in elsewhere.stderr


@pytest.mark.extended
def test_its_options(site: Site):
    site.backend("adder")
    config = {"backends": [{"name": "adder", "options": {"threads": 2}}]}
    assert np.array_equal(delegate.to_backend(exported(), config=config)(A, B), Net()(A, B))
    config["backends"][0]["options"] = {"threads": 65}
    with pytest.raises(ConfigError, match="threads"):
        delegate.to_backend(exported(), config=config)


@pytest.mark.extended
def test_used_by_default_where_it_is_available(site: Site):
    site.backend("adder")
    program = delegate.to_backend(exported(), placement=delegate.ByPreference())
    assert "adder" in {p.backend for p in program.report.partitions}
    assert "adder" in delegate.to_backend(exported()).report.estimates["forward"]
