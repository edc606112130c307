"""Errors of settings and calibration data have clear messages, and nothing is quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.config import Quantization
from delegate.errors import BackendNotFound, ConfigError, DelegateError, InputError
from delegate.registry import Registry
from delegate.testing import assert_same
from tests.support import zoo
from tests.support.plugins import Site
from tests.support.quantized import settings_of

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from delegate.quantization import convert, prepare, quantize, read_calibration


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(66, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.encoder(x)))


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Net().eval(), (torch.randn(3, 66),))


def good() -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(3, 66),) for _ in range(2)]


# Name -> settings, calibration data, the error and words of it.
WRONG: Mapping[str, tuple[Quantization, Callable[[], Any], type[DelegateError], str]] = {
    "no data": (settings_of("xnnpack"), lambda: None, ConfigError, "no calibration data"),
    "no batch": (settings_of("xnnpack"), list, InputError, "no calibration data"),
    "other sizes": (settings_of("xnnpack"), lambda: [torch.randn(3, 65)], InputError, r"\[3, 65\].*\[3, 66\]"),
    "other rank": (settings_of("xnnpack"), lambda: [torch.randn(66)], InputError, r"\[66\]"),
    "other dtype": (settings_of("xnnpack"), lambda: [torch.ones(3, 66, dtype=torch.int64)], InputError, "int64"),
    "NumPy's float64": (settings_of("xnnpack"), lambda: [np.ones((3, 66))], InputError, "float64"),
    "too many inputs": (settings_of("xnnpack"), lambda: [(torch.ones(3, 66),) * 2], InputError, "2 inputs"),
    "no batches": (settings_of("xnnpack"), lambda: 5, InputError, "calibration data is a int"),
    "no tensor": (settings_of("xnnpack"), lambda: ["x"], InputError, "str"),
    "constant": (settings_of("xnnpack"), lambda: [torch.ones(3, 66)] * 3, InputError, "the same number"),
    "NaN": (settings_of("xnnpack"), lambda: [torch.full((3, 66), torch.nan)], InputError, "NaN"),
    "infinity": (settings_of("xnnpack"), lambda: [torch.full((3, 66), torch.inf)], InputError, "infinity"),
    "a later batch": (settings_of("xnnpack"), lambda: [*good(), torch.ones(2, 66)], InputError, "batch 3"),
    "no backend": (settings_of("xnpack"), good, BackendNotFound, "xnnpack"),
    "no scheme": (settings_of("xnnpack", "static_int9"), good, ConfigError, "did you mean 'static_int8'"),
    "a path": (settings_of("xnnpack", modules={"encodr": "off"}), good, ConfigError, "did you mean 'encoder'"),
    "a path's scheme": (settings_of("xnnpack", modules={"head": "int"}), good, ConfigError, "no scheme 'int'"),
    "a type": (settings_of("xnnpack", module_types={"Linea": "off"}), good, ConfigError, "did you mean 'Linear'"),
    "an operator": (settings_of("xnnpack", operators={"aten.liner*": "off"}), good, ConfigError, "aten.linear"),
    "a node": (settings_of("xnnpack", nodes={"linear_12": "off"}), good, ConfigError, "'linear_12' matches nothing"),
    "a rule's group": (settings_of("xnnpack", "dynamic_int4/64"), good, ConfigError, "64 does not divide 66"),
    "a group": (settings_of("xnnpack", "dynamic_int4", group_size=32), good, ConfigError, r"divide 66.*: give 0 for"),
    "a group's step": (settings_of("xnnpack", "dynamic_int4", group_size=33), good, ConfigError, "multiples of 32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    settings, data, kind, words = WRONG[name]
    with pytest.raises(kind, match=words):
        quantize(exported(), settings, data())


def test_a_backend_of_floats(site: Site) -> None:
    site.backend("floats")
    with pytest.raises(
        ConfigError, match=r"'floats' does not support quantized programs: name a backend that runs integers"
    ):
        quantize(exported(), settings_of("floats"), good(), registry=Registry())


def test_what_was_never_measured() -> None:
    with pytest.raises(ConfigError, match="never measured"):
        convert(prepare(exported(), settings_of("xnnpack")))


def test_groups_in_training() -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(64, 8)).train(), (torch.randn(2, 64),))
    with pytest.raises(ConfigError, match="group_size: 0"):
        prepare(program, settings_of("xnnpack", "dynamic_int4", group_size=32), qat=True)


def test_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(InputError, match=r"holds no \.npz"):
        read_calibration(str(folder), ["x"])
    np.savez(folder / "a.npz", np.ones((3, 66), np.float32))
    np.savez(folder / "b.npz", x=np.zeros((3, 66), np.float32))
    first, second = read_calibration(str(folder), ["x"])
    assert (float(first[0].max()), float(second[0].max())) == (1, 0)
    np.savez(folder / "c.npz", z=np.zeros(3))
    with pytest.raises(InputError, match=r"c\.npz' holds z.*takes x"):
        read_calibration(str(folder), ["x"])
    (folder / "c.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(InputError, match="cannot be read"):
        read_calibration(str(folder), ["x"])
    with pytest.raises(InputError, match="no file"):
        read_calibration(str(tmp_path / "nothing.npz"), ["x"])


def test_a_function_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy names functions of the module, not those that it imports."""
    (tmp_path / "own_batches.py").write_text("from os import getcwd, listdir\ndef batches():\n  yield getcwd()\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"has no function 'data'.*: known: batches$"):
        read_calibration("own_batches:data", ["x"])


def test_a_function_that_fails_midway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_batches.py").write_text(
        "import torch\ndef some():\n  yield torch.randn(3, 66)\n  raise OSError('gone')\n"
    )
    monkeypatch.chdir(tmp_path)
    config = {"backends": ["xnnpack"], "quantization": {"calibration": "bad_batches:some"}}
    with pytest.raises(InputError, match=r"bad_batches:some failed: OSError: gone"):
        delegate.to_backend(exported(), config=config)


CONFIGS: Mapping[str, tuple[dict[str, Any], str]] = {
    "a backend that is not used": ({"backends": ["xnnpack"], "quantization": {"backend": "dsp"}}, "not among"),
    "no backend": ({"backends": [], "quantization": {}}, "`backends` is empty"),
    "no data": ({"backends": ["xnnpack"], "quantization": {}}, "no calibration data"),
    "a key": ({"backends": ["xnnpack"], "quantization": {"schem": "x"}}, "did you mean"),
    "no batches": ({"backends": ["xnnpack"], "quantization": {"batches": 0}}, "greater"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(name: str) -> None:
    config, words = CONFIGS[name]
    with pytest.raises(ConfigError, match=words):
        delegate.to_backend(exported(), config=config)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, small: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
        return self.layer(small) + large


def test_named_batches_are_taken_by_their_names() -> None:
    torch.manual_seed(0)
    small, large = torch.randn(4, 8), 100 * torch.randn(4, 8)
    module = Product().eval()
    ep = torch.export.export(module, (small, large))
    expected = quantize(ep, settings_of("xnnpack"), [(small, large)]).module()(small, large)
    for batch in ({"small": small, "large": large}, {"large": large, "small": small}):
        assert_same(quantize(ep, settings_of("xnnpack"), [batch]).module()(small, large), expected)
    with pytest.raises(InputError, match="an input 'larg', which the model does not take: did you mean 'large'"):
        quantize(ep, settings_of("xnnpack"), [{"small": small, "larg": large}])


class Logarithm(nn.Module):
    """A state, and values whose logarithm may be NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count = nn.Linear(8, 8), nn.Buffer(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return torch.tanh(self.layer(x).log() * 0.5) + self.count


def broken(value: float) -> torch.export.ExportedProgram:
    module = Net().eval()
    with torch.no_grad():
        module.head.weight[1, 2] = value
    return torch.export.export(module, (torch.randn(3, 66),))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("scheme", ["static_int8", "dynamic_int8", "weight_only_int8"])
def test_a_weight_without_a_scale(scheme: str, value: float) -> None:
    settings = settings_of("xnnpack", scheme)
    with pytest.raises(ConfigError, match=r"weight head.weight has NaN or infinity.*quantization.modules: {head: off}"):
        quantize(broken(value), settings, good())
    quantize(broken(value), settings_of("xnnpack", scheme, modules={"head": "off"}), good())


@pytest.mark.parametrize("observer", ["histogram", "minmax"])
def test_an_activation_without_a_range(observer: str) -> None:
    """It is named with the batch, and the states of the caller's program are as before."""
    ep = torch.export.export(Logarithm().eval(), (torch.randn(4, 8),))
    with pytest.raises(
        InputError, match=r"^log has NaN or infinity.*\(calibration batch 1\).*quantization.nodes: {log: off}"
    ):
        quantize(ep, settings_of("xnnpack", observer=observer), [torch.randn(4, 8)])
    assert not ep.state_dict["count"].any()


def test_calibration_writes_to_no_tensor_of_the_caller() -> None:
    module = Logarithm().eval()
    with torch.no_grad():
        module.layer.weight.abs_()
        module.layer.bias.fill_(1)
    ep = torch.export.export(module, (torch.rand(4, 8),))
    versions = {name: tensor._version for name, tensor in ep.state_dict.items()}
    program = quantize(ep, settings_of("xnnpack"), [torch.rand(4, 8)])
    assert {name: tensor._version for name, tensor in ep.state_dict.items()} == versions
    assert not program.state_dict["count"].any()
