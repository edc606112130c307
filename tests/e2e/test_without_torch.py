"""Programs run where torch and all that compiles them are absent."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.export import Dim

from tests.support.lowering import assert_same, compiled
from tests.support.processes import AHEAD_OF_TIME, run

RUN = """
import pathlib
import numpy as np
import delegate

folder = pathlib.Path(sys.argv[1])
with delegate.load(folder / "model.dlg") as program:
    for i, rows in enumerate((4, 1, 7, 4)):
        given = np.load(folder / f"in{rows}.npy")
        result = program({"image": given, "more": [given[:, :2].copy()]})
        assert list(result) == ["scores", "sums"] and isinstance(result["sums"], tuple), result
        np.savez(folder / f"out{i}.npz", result["scores"], *result["sums"])
    assert {n.backend for n in program.report.nodes} == {"xnnpack", "portable"}
print(sorted(name for name in sys.argv[2:] if sys.modules.get(name) is not None))
"""


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))

    def forward(self, batch: dict[str, object]) -> dict[str, object]:
        hidden = self.layers(batch["image"])
        return {"scores": torch.softmax(hidden, -1), "sums": (torch.cumsum(hidden, 1)[:, 1:] + batch["more"][0],)}


def batch(rows: int) -> dict[str, object]:
    image = torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))
    return {"image": image, "more": [image[:, :2].contiguous()]}


def test_saved_program_runs_without_torch(tmp_path):
    torch.manual_seed(0)
    module = Mixed().eval()
    rows = {0: Dim("rows", min=1, max=8)}
    shapes, portable = ({"image": rows, "more": [rows]},), {"aten.cumsum.default": 1}
    program = compiled(module, (batch(4),), backends="xnnpack", dynamic_shapes=shapes, portable=portable)
    program.save(tmp_path / "model.dlg")
    for count in (1, 4, 7):
        np.save(tmp_path / f"in{count}.npy", batch(count)["image"].numpy())
    for absent in (AHEAD_OF_TIME, ()):  # if they are there, they are not imported
        done = run(RUN, tmp_path, *AHEAD_OF_TIME, absent=absent)
        assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
        for i, count in enumerate((4, 1, 7, 4)):
            with torch.no_grad(), np.load(tmp_path / f"out{i}.npz") as results:
                expected = module(batch(count))
                assert_same([*results.values()], [expected["scores"], *expected["sums"]], 1e-6)


def test_importing_delegate_imports_next_to_nothing():
    heavy = (*AHEAD_OF_TIME, "numpy", "flatbuffers", "ai_edge_litert")
    done = run("import delegate; print([m for m in sys.argv[1:] if m in sys.modules])", *heavy)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
