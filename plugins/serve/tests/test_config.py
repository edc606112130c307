"""`delegate serve --config`: keys, options that replace them, and errors with their place."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from delegate_serve.config import json_schema, read
from delegate_serve.runtime.settings import MIB, ModelFile, Replicas, Settings, Telemetry
from typer.testing import CliRunner

from delegate.cli.app import app
from delegate.errors import ConfigError
from tests.support.commands import FAILED, require_exit

from .test_command import serving

EXAMPLE = """\
version: 1
port: 0
grpc_port: 0
max_body: 2
threads: 3
memory: 900
control: true
shared_memory: delegate-
telemetry: {endpoint: "http://localhost:4318/v1/traces", service: images, sample: 0.5, partitions: true}
defaults:
  batch: 8
  timeout: 5
models:
  pair: pair.dlg
  image:
    path: net.dlg
    batch: 4
    batch_delay: 500
    queue: 9
    sessions: 3
    session_timeout: 1
    priority: 5
    model_memory: 100
    kernels: [portable]
    fallback: error
    isolate: false
    trust_code: false
    options: {xnnpack: {threads: 1}}
    replicas:
      {min: 2, max: 3, target: 4, grow_delay: 5, shrink_delay: 9, cpus: 1, resources: {GPU: 1}, group: images,
       loaded: 2}
  types:
    path: types.dlg
    methods: [fp32, int8]
    adapters: {}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "server.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def example(programs: dict[str, Path]) -> Path:
    """The example beside its programs."""
    return write(programs["net"].parent, EXAMPLE)


def test_keys(example: Path) -> None:
    config = read(example, {}, {})
    folder, own = example.parent, {"batch": 8, "timeout": 5.0, "max_body": 2 * MIB}
    own |= {"threads": 3, "memory": 900 * MIB, "control": True, "shared_memory": "delegate-"}
    load = {
        "kernels": ("portable",),
        "fallback": "error",
        "isolate": False,
        "trust_code": False,
        "options": {"xnnpack": {"threads": 1}},
    }
    limits = {"queue": 9, "sessions": 3, "session_timeout": 1.0, "priority": 5, "model_memory": 100 * MIB}
    image = Settings(**own | limits | {"batch": 4}, batch_delay=5e-4)
    assert config.traces() == Telemetry("http://localhost:4318/v1/traces", "images", 0.5, True)
    assert config.settings() == Settings(**own)
    assert config.files() == {
        "pair": ModelFile(folder / "pair.dlg", Settings(**own)),
        "image": ModelFile(
            folder / "net.dlg", image, (), load, replicas=Replicas(2, 3, 4, 5.0, 9.0, 1, {"GPU": 1.0}, "images", 2)
        ),
        "types": ModelFile(folder / "types.dlg", Settings(**own), ("fp32", "int8")),
    }
    assert (config.host, config.port, config.grpc_port) == ("127.0.0.1", 0, 0)


def test_adapters(example: Path) -> None:
    """Their folders begin at the file's folder."""
    write(example.parent, EXAMPLE.replace("adapters: {}", "adapters: {polite: polite, rude: other/rude}"))
    folder = example.parent
    assert read(example, {}, {}).files()["types"].adapters == {
        "polite": folder / "polite",
        "rude": folder / "other/rude",
    }


def test_options_replace_keys(example: Path) -> None:
    config = read(example, {"new": Path("new.dlg"), "pair": Path("other.dlg")}, {"batch": 2, "port": 9, "files": []})
    files = config.files()
    assert config.port == 9
    assert list(files) == ["pair", "image", "types", "new"]
    assert {file.settings.batch for file in files.values()} == {2}
    assert files["pair"].path == Path("other.dlg")
    assert files["image"].settings.queue == 9
    assert files["new"] == ModelFile(Path("new.dlg"), files["pair"].settings)


def test_the_command(example: Path) -> None:
    """It serves the requested methods alone."""
    with serving("--config", str(example), "--batch", "16") as (process, url):
        assert url.endswith("/v2/models/types.int8")
        with urllib.request.urlopen(f"{url.rpartition('/')[0]}/image", timeout=20) as response:
            assert json.loads(response.read())["inputs"][0]["shape"][0] == -1
        process.terminate()
        assert process.wait(20) == 0


ERRORS = {
    f"models: {{net: {'x' * 300}.dlg}}": ("models.net: there is no program file", ":1:15)", "correct the path"),
    "models: {net: {path: net.dlg, bacth: 8}}": (":1:31)", "models.net.bacth: unknown key", "did you mean 'batch'?"),
    "modles: {}\nmodels: {net: net.dlg}": (":1:1)", "modles: unknown key", "did you mean 'models'?"),
    "defaults: {quue: 3}\nmodels: {net: net.dlg}": (":1:12)", "defaults.quue: unknown key", "did you mean 'queue'?"),
    "models:\n  net: {batch: 8}": (":2:8)", "models.net.path: missing", "add it"),
    "models:\n  net: {path: net.dlg, batch: 0}": (":2:31)", "models.net.batch: should be greater than or equal to 1"),
    "models:\n  net: {path: net.dlg, batch: many}": (":2:31)", "should be a whole number, not 'many'"),
    "models:\n  net: 3": (":2:8)", "should be the path of a program file"),
    "models:\n  net: absent.dlg": (":2:8)", "models.net: there is no program file", "correct the path"),
    "models:\n  a/b: net.dlg": (":2:3)", "'a/b' is no name that a URL can have"),
    "port: 70000\nmodels: {net: net.dlg}": (":1:7)", "port: should be less than or equal to 65535"),
    "version: 2\nmodels: {net: net.dlg}": (":1:10)", "version"),
    "models:\n  net: {path: net.dlg, replicas: {min: 2}}": (":2:34)", "models.net.replicas: the smallest number is 2"),
    "models:\n  a: {path: net.dlg, replicas: {group: g}}\n  b: {path: net.dlg, replicas: {group: g, cpus: 2}}": (
        ":3:32)",
        "models.b.replicas: model 'a' of the same group has other replicas",
        "give all models of a group the same keys",
    ),
    "port: 81\ngrpc_port: 81\nmodels: {net: net.dlg}": ("HTTP and gRPC have the same port 81", "give another port"),
    "shared_memory: a/b\nmodels: {net: net.dlg}": ("shared_memory is 'a/b'", "leave out the slash"),
    "threads: 1025\nmodels: {net: net.dlg}": (":1:10)", "threads: should be less than or equal to 1024"),
    "models:\n  net: {path: net.dlg, replicas: {resources: {GPU: -1}}}": (
        ":2:",
        "models.net.replicas.resources.GPU: should be greater than or equal to 0",
    ),
    "telemetry: {endpoint: localhost}\nmodels: {net: net.dlg}": (":1:23)", "telemetry.endpoint: "),
    "version: 1": ("the configuration has no models", "add the key `models`"),
    "[1]": ("a configuration is a mapping (key: value), not list",),
    "models: {net: net.dlg, net: net.dlg}": (":1:24)", "models.net: the key appears twice"),
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors(programs: dict[str, Path], text: str) -> None:
    path = write(programs["net"].parent, text)
    with pytest.raises(ConfigError) as caught:
        read(path, {}, {})
    for part in ERRORS[text]:
        assert part in str(caught.value)


def test_a_method_that_does_not_exist(example: Path) -> None:
    example.write_text(EXAMPLE.replace("int8", "int7"))
    args = ["serve", "--config", str(example), "--port", "0"]
    require_exit(args, FAILED)
    stderr = CliRunner().invoke(app, args).stderr
    assert "model 'types' has no method 'int7' (" in stderr
    assert "did you mean 'int8'?" in stderr


def keys(schema: Mapping[str, Any]) -> set[str]:
    """Return all keys of a schema."""
    parts = [schema, *schema["$defs"].values()]
    return {key for part in parts for key in part.get("properties", ())}


def test_schema(example: Path) -> None:
    done = CliRunner().invoke(app, ["serve", "--schema"])
    assert json.loads(done.stdout) == json_schema()
    assert all(f"{key}:" in EXAMPLE for key in keys(json_schema()) - {"host", "ray", "adapters"})


def test_it_needs_no_torch(example: Path) -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom delegate_serve.config import read\nfrom pathlib import Path\n"
    code += f"print(list(read(Path({str(example)!r}), {{}}, {{}}).files()))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "['pair', 'image', 'types']\n", done.stderr
