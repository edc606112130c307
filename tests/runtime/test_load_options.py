"""Options of backends at load: what they change, and what is refused."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pytest
import torch
from pydantic import Field, ValidationError
from torch import nn
from typer.testing import CliRunner

import delegate
from delegate.backend import aot
from delegate.cli.app import app
from delegate.errors import ConfigError, ProgramError
from delegate.program.file import serialize
from delegate.runtime.option_rules import rule_of_schema, rules_of_json, rules_to_json
from tests.support.faulty import MODULE, Runtime, registry  # noqa: F401 - a fixture among them


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "model.dlg"
    config = {"backends": [{"name": "xnnpack", "options": {"threads": 2}}]}
    delegate.to_backend(torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),)), config=config).save(path)
    return path


@pytest.mark.parametrize("isolate", [0, -1, float("nan"), float("inf"), "yes", 10**400, None], ids=repr)
def test_a_limit_of_isolation_that_is_none_is_refused(saved, isolate):
    """0 would run the vendor library of a stranger's file in this process."""
    with pytest.raises(ConfigError, match="isolate should be True, False, or a positive number of seconds"):
        delegate.load(saved, isolate=isolate)


@pytest.mark.parametrize(
    "options",
    [[1], "xnnpack", {1: {}}, {"xnnpack": []}, {"xnnpack": "x"}, {"xnnpack": None}, {"xnnpack": {1: 2}}],
    ids=repr,
)
def test_options_that_are_no_mapping_are_refused(saved, options):
    with pytest.raises(ConfigError, match="should be a mapping of"):
        delegate.load(saved, options=options)


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
        ({"dsp": {"threads": 1}}, "backend 'dsp', but the program has no partition of it"),
        ({"xnnpack": {"thread": 1}}, "no load option 'thread' .*did you mean 'threads'"),
        ({"xnnpack": {"dynamic": False}}, "dynamic is fixed: .*lower the model again"),
        (
            {"xnnpack": {"threads": "two"}},
            "threads should be a whole number above 0 and up to 1024, or null, not 'two'",
        ),
        ({"xnnpack": {"threads": -1}}, "threads should be a whole number"),
        ({"xnnpack": {"threads": True}}, "threads should be a whole number"),
        ({"xnnpack": {"threads": 0}}, "threads should be a whole number"),
        ({"xnnpack": {"threads": 1025}}, "threads should be a whole number"),
        ({"xnnpack": {"weight_cache": 1}}, "weight_cache should be true or false, not 1"),
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


class Options(aot.Options):
    """Options of every plain kind."""

    level: int = Field(default=-1, ge=-1, le=64)
    share: float | None = Field(default=None, gt=0, lt=1)
    mode: Literal["fast", "slow"] = "fast"
    quiet: bool = False
    path: str = Field(default="", max_length=5)


KINDS = {"level": int, "share": float, "mode": str, "quiet": bool, "path": str}
VALUES: dict[str, list[Any]] = {
    "level": [-2, -1, 0, 64, 65, 77, "high", None, 1.5],
    "share": [0.0, 0.5, 1.0, None, -0.5, "half", float("nan")],
    "mode": ["fast", "slow", "other", 3, None],
    "quiet": [True, False, None],
    "path": ["", "12345", "123456", None, 5],
}


@pytest.mark.parametrize(("option", "value"), [(name, value) for name, values in VALUES.items() for value in values])
def test_what_a_lowering_accepts_is_accepted_at_load_and_nothing_else(registry, option, value):  # noqa: F811
    class Adder(aot.Backend):
        name = "faulty"
        Options: ClassVar[type[aot.Options]] = Options

        def check(self, node):
            from delegate.verdict import YES, Reason, no

            return YES if str(node.target) == "aten.add.Tensor" else no(Reason.OPERATOR, "it only adds")

        def preprocess(self, region):
            return aot.PreprocessResult(b"sum", self.options.model_dump())

    class Adding(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return torch.relu(a + a)

    MODULE.Aot, MODULE.Runtime = Adder, type("Loaded", (Runtime,), {"load_options": KINDS})
    data = serialize(delegate.to_backend(torch.export.export(Adding(), (torch.ones(3),)), "faulty").program)
    try:
        Options(**{option: value})
        accepted = True
    except ValidationError:
        accepted = False
    if accepted:
        with delegate.load(data, options={"faulty": {option: value}}) as program:
            assert program.program.delegates[0].compile_specs[option] == value
    else:
        with pytest.raises(ConfigError, match=f"{option} should be"):
            delegate.load(data, options={"faulty": {option: value}})


def test_rules_survive_the_file_and_those_that_are_none_do_not():
    rule = rule_of_schema(Options.model_json_schema()["properties"]["level"])
    assert rule == [{"type": "integer", "minimum": -1, "maximum": 64}]
    assert rules_of_json(rules_to_json({"acme": {"level": rule}})) == {"acme": {"level": rule}}
    assert rules_of_json("") == {}
    assert rule_of_schema({"$ref": "#/$defs/Tuning"}) is None
    assert rule_of_schema({"type": "string", "pattern": "a+"}) is None
    wrong = [{"type": "whole"}, {"type": "integer", "minimum": "one"}, {"type": "integer", "most": 3}, {"minimum": 1}]
    for text in ("[]", *(rules_to_json({"acme": {"level": [stated]}}) for stated in wrong)):
        with pytest.raises(ProgramError, match="the rules of load options cannot be read"):
            rules_of_json(text)
