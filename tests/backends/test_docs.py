"""The code of the reference of backends imports and is taken as a backend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from delegate.errors import BackendUnavailable
from delegate.plugins import PluginState
from delegate.registry import Registry
from tests.support.plugins import Site

PAGES = [f"backend{part}.md" for part in ("s", "-aot", "-runtime")]
TEXT = "".join((Path(__file__).parents[2] / "docs" / "reference" / page).read_text() for page in PAGES)
BLOCKS = dict(re.findall(r"```python\n# acme_delegate/(\w+)\.py\n(.*?)```", TEXT, re.DOTALL))


@pytest.fixture
def registry(site: Site) -> Registry:
    """With the documented backend, whose vendor library is absent."""
    (site.root / "acme_delegate").mkdir()
    for name, code in BLOCKS.items():
        (site.root / "acme_delegate" / f"{name}.py").write_text(code)
    site.distribution("acme-npu-delegate", "1.0", {"acme": "acme_delegate.info:INFO"})
    return Registry()


def test_states_the_absent_library(registry: Registry) -> None:
    assert set(BLOCKS) == {"__init__", "info", "aot", "patterns", "asking", "tracing", "runtime"}
    assert registry.state("acme").state is PluginState.UNAVAILABLE
    with pytest.raises(BackendUnavailable, match=r"acme-sdk cannot be imported.*pip install acme-sdk"):
        registry.runtime("acme")


def test_checks_and_lowers(registry: Registry) -> None:
    from delegate.backend.aot import Region
    from delegate.config import BackendChoice, backend_options

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -torch.relu(x)

    graph = torch.export.export(Net(), (torch.ones(2),)).graph
    options = backend_options(BackendChoice(name="acme", options={"threads": 3}), registry)
    backend = registry.aot("acme", absent_ok=True)(options)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    assert [bool(backend.check(n)) for n in nodes] == [True, True]
    integers = torch.export.export(Net(), (torch.ones(2, dtype=torch.int64),)).graph
    verdict = next(backend.check(n) for n in integers.nodes if n.op == "call_function")
    assert str(verdict) == "unsupported dtype: torch.int64 where Acme has float32"
    result = backend.preprocess(Region("acme_0", graph, (), {}, ()))
    assert (result.blob, result.compile_specs) == (b"aten.relu.default\naten.neg.default", {"threads": 3})


def test_a_library_is_asked(registry: Registry) -> None:
    from tests.support.functions import Function
    from tests.support.planning import edge

    module = __import__("acme_delegate.asking").asking
    backend = module.AcmeAsked(module.Options())
    program = edge(Function(lambda x: x.relu().sin()), torch.ones(2))
    verdicts = [str(backend.check(n)) for n in program.graph.nodes if n.op == "call_function"]
    assert verdicts == ["yes", "unsupported operator: Acme does not convert it: no rule for sin"]


def test_a_pattern_is_claimed(registry: Registry) -> None:
    """As the documentation says: taken whole, or refused with the reason."""
    from delegate.backend.selected import SelectedBackend
    from delegate.partitioner.partitioner import CapabilityPartitioner
    from delegate.partitioner.planning import plan
    from tests.support.functions import Function
    from tests.support.planning import edge

    module = __import__("acme_delegate.patterns").patterns
    aot = registry.aot("acme", absent_ok=True)
    given = {"acme": SelectedBackend("acme", aot, aot.Options())}
    x = torch.ones(2, 3)
    for function, expected in (
        (lambda x: torch.relu(x + x), [["add", "relu"]]),
        (lambda x: (torch.relu(y := x + x), y.cos()), [["relu"]]),  # relu alone: the sum is used elsewhere
    ):
        made = plan(edge(Function(function), x), [CapabilityPartitioner("acme")], given)
        assert [[n.name for n in p.nodes] for p in made.partitions] == expected
    assert module.TABLE.pattern("add, relu").lower is module.add_relu
