"""Options of backends at load: what they change, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import delegate
from delegate.errors import ConfigError
from tests.cli.test_run import CliRunner, app


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "model.dlg"
    config = {"backends": [{"name": "xnnpack", "options": {"threads": 2}}]}
    delegate.to_backend(torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),)), config=config).save(path)
    return path


@pytest.mark.parametrize("isolate", [False, True])
def test_a_blob_is_opened_with_them(saved, isolate):
    with delegate.load(saved, options={"xnnpack": {"threads": 1}}, isolate=isolate) as program:
        (spec,) = program.program.delegates
        assert spec.compile_specs["threads"] == 1
        assert program(torch.ones(2, 4).numpy()).shape == (2, 4)
    with delegate.load(saved) as program:
        assert program.program.delegates[0].compile_specs["threads"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"xnnpak": {"threads": 1}}, "no partition of it.*did you mean 'xnnpack'"),
        ({"dsp": {"threads": 1}}, "backend 'dsp', and the program has no partition of it"),
        ({"xnnpack": {"thread": 1}}, "no option 'thread' at load .*did you mean 'threads'"),
        ({"xnnpack": {"dynamic": False}}, "dynamic is fixed: .*lower the model anew"),
        ({"xnnpack": {"threads": "two"}}, "threads should be a whole number of 0 or more, not 'two'"),
        ({"xnnpack": {"threads": -1}}, "threads should be a whole number"),
        ({"xnnpack": {"threads": True}}, "threads should be a whole number"),
    ],
)
def test_what_is_refused(saved, options, message):
    with pytest.raises(ConfigError, match=message):
        delegate.load(saved, options=options)


@pytest.mark.parametrize(
    ("option", "code", "said"),
    [
        ("xnnpack.threads=1", 0, "ran forward"),
        ("xnnpack.threads=one", 1, "threads should be a whole number"),
        ("threads=1", 1, "write BACKEND.NAME=VALUE"),
    ],
)
def test_on_the_command_line(saved, option, code, said):
    done = CliRunner().invoke(app, ["run", str(saved), "--option", option])
    assert done.exit_code == code
    assert said in " ".join(done.output.split())
