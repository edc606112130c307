"""`delegate serve` as a process: what it prints, its end by signals, and errors before any work begins."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from tests.support.commands import FAILED, USAGE, require_exit
from tests.support.hostile import EVIL, require_printable

from .conftest import serving

FROZEN = """
import gc, os, signal, sys, threading
from delegate.cli.main import main
def report():
    sys.stdin.readline()
    print(gc.get_freeze_count(), len(gc.get_objects()), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=report, daemon=True).start()
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(programs: dict[str, Path], number: int) -> None:
    with serving(str(programs["pair"]), "--batch", "4", "--grpc-port", "0") as (process, url):
        with urllib.request.urlopen(f"{url}/ready", timeout=20) as response:
            assert response.read() == b'{"name":"pair","ready":true}'
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (0, "ended: all requests are answered\n", "")


def test_collections_do_not_examine_what_is_imported(programs: dict[str, Path]) -> None:
    with serving(str(programs["net"]), run=("-c", FROZEN)) as (process, _):
        stdout, _ = process.communicate("\n", timeout=20)
    frozen, others, *_ = stdout.split()
    assert int(frozen) > 10 * int(others) > 0


def test_what_it_prints(programs: dict[str, Path]) -> None:
    with serving(f"image={programs['net']}", "--batch", "4") as (process, url):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v2/models/image", url)
        with urllib.request.urlopen(url, timeout=20) as response:
            assert b'"name":"image"' in response.read()
        assert process.poll() is None


def test_odd_values_that_are_none_errors(programs: dict[str, Path], tmp_path: Path) -> None:
    """A name is a part of a URL, gRPC gets the largest limit that it has, and a collector may come later."""
    path = tmp_path / "server.yaml"
    path.write_text('telemetry: {endpoint: "http://127.0.0.1:9/v1/traces"}')
    options = ("--config", str(path), "--grpc-port", "0", "--max-body", "4096")
    with serving(f"a b?={programs['net']}", *options) as (process, url):
        assert url.endswith("/v2/models/a%20b%3F")
        process.terminate()
        stderr = process.communicate(timeout=20)[1]
    assert "warning: `telemetry.endpoint` 'http://127.0.0.1:9/v1/traces' does not answer" in stderr


def fails(*args: str) -> str:
    """Run the command, assert that it fails, and return its one line of stderr."""
    require_exit(["serve", "--port", "0", *args], FAILED)
    return CliRunner().invoke(app, ["serve", "--port", "0", *args]).stderr


@pytest.mark.parametrize("option", ["--shared-memory=a", "--memory=9", "--threads=2", "--control"])
def test_options_that_a_cluster_does_not_have(programs: dict[str, Path], option: str) -> None:
    name = option.partition("=")[0]
    assert f"{name} needs a server in one process" in fails(str(programs["net"]), option, "--ray", "auto")


def test_a_port_in_use(programs: dict[str, Path]) -> None:
    """The model is not there either: it is not looked at yet."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        stderr = CliRunner().invoke(app, ["serve", "absent.dlg", "--port", port]).stderr
    assert f"cannot serve on port {port} of '127.0.0.1': Address already in use" in stderr
    assert stderr.endswith("end the other server, or choose another --host or --port\n")


def test_an_address_of_another_machine() -> None:
    assert "cannot serve on port 0 of '192.0.2.1'" in fails("absent.dlg", "--host", "192.0.2.1")
    assert "cannot serve on port 0 of 'no host'" in fails("absent.dlg", "--host", "no host")


def test_files_that_are_none(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.dlg"
    damaged.write_bytes(b"x" * 100)
    assert "absent.dlg" in fails("absent.dlg")
    assert "damaged.dlg" in fails(str(damaged))


def test_two_models_of_one_name(programs: dict[str, Path]) -> None:
    net, pair, types = (str(programs[name]) for name in ("net", "pair", "types"))
    stderr = fails(net, f"net={pair}")
    assert f"two programs have the name 'net': {net} and {pair}: give one of them another name: NAME=FILE" in stderr
    assert "two models have the name 'types.bool'" in fails(types, f"types.bool={pair}")
    assert "has no name that a URL can have" in fails(f"a/b={pair}")
    assert "has no name that a URL can have" in fails(f"={pair}")


@pytest.mark.parametrize(
    ("adapters", "match"),
    [
        (
            ("--adapter", "polite"),
            "'polite' names no adapter of a model: write MODEL:NAME=FOLDER; models are net",
        ),
        (("--adapter", "polite=x"), "'polite=x' names no adapter"),
        (("--adapter", "other:polite=x"), "'other:polite=x' names no adapter"),
        (("--adapter", "net:=x"), "'net:=x' names no adapter"),
        (("--adapter", "net:a=x", "--adapter", "net:a=y"), "two adapters of 'net' have the name 'a'"),
        (("--adapter", "net:a=x"), "program 'net' is no language model"),
    ],
)
def test_adapters_without_a_model(adapters: tuple[str, ...], match: str, programs: dict[str, Path]) -> None:
    stderr = fails(str(programs["net"]), str(programs["pair"]), *adapters)
    assert match in stderr.replace(" (--adapter)", "")


def test_a_file_that_needs_absent_hardware(programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "openvino,onnxruntime,xnnpack")
    from delegate.registry import default_registry

    default_registry.cache_clear()
    try:
        stderr = fails(str(programs["net"]))
    finally:
        monkeypatch.undo()
        default_registry.cache_clear()
    assert "xnnpack" in stderr
    assert "is blocked" in stderr


def test_programs_that_cannot_be_served(programs: dict[str, Path], tmp_path: Path) -> None:
    assert "depend on each other: serve it without --batch" in fails(str(programs["mean"]), "--batch", "4")

    class Complex(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_complex(x)

    path = tmp_path / "complex.dlg"
    delegate.to_backend(torch.export.export(Complex(), (torch.zeros(3, 2),)), []).save(path)
    assert "'output' of method forward is complex64, which the protocol does not have" in fails(str(path))


@pytest.mark.parametrize(
    "args", [(), ("--port", "-1"), ("x", "--batch", "0"), ("x", "--timeout", "0"), ("x", "--queue", "0")]
)
def test_wrong_usage(args: tuple[str, ...]) -> None:
    require_exit(["serve", *args], USAGE)


@pytest.mark.parametrize("form", [(EVIL,), (f"{EVIL}=x.dlg",), ("x.dlg", "--host", EVIL)], ids=ascii)
def test_it_prints_no_control_characters(form: tuple[str, ...]) -> None:
    require_printable(["serve", "--port", "0", *form])


def test_it_needs_no_torch(programs: dict[str, Path]) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['opentelemetry'] = None\n"
        "from pathlib import Path\n"
        "from delegate_serve.runtime import grpc_service, http, metrics, models, server, settings\n"
        f"file = settings.ModelFile(Path({str(programs['net'])!r}), settings.Settings(batch=4))\n"
        "with models.Models({'net': file}, metrics.Metrics()) as loaded:\n"
        "    print(loaded.by_name['net'].metadata()['inputs'])\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert "'datatype': 'FP32'" in done.stdout, done.stderr


class Add(torch.nn.Module):
    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.number


def post(url: str) -> float:
    """Return the answer of a model `Add` to 0."""
    body = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0]}]}'
    with urllib.request.urlopen(f"{url}/infer", body, timeout=20) as response:
        return float(json.loads(response.read())["outputs"][0]["data"][0])


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no such signal")
def test_files_are_loaded_again_without_lost_requests(tmp_path: Path) -> None:
    """Clients ask all the time; each gets the results of the old file, and then the results of the new one."""
    path = tmp_path / "add.dlg"
    one, two = (delegate.to_backend(torch.export.export(Add(number), (torch.zeros(1),)), []) for number in (1.0, 2.0))
    one.save(path)
    with serving(str(path)) as (process, url), ThreadPoolExecutor(3) as pool:
        assert process.stdout is not None
        done = Event()

        def ask() -> list[float]:
            answers = [post(url)]
            while not done.is_set():
                answers.append(post(url))
            return [*answers, post(url)]

        clients = [pool.submit(ask) for _ in range(3)]
        two.save(path)
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "loaded again: add\n"
        done.set()
        for client in clients:
            answers = client.result()
            assert answers == sorted(answers)
            assert set(answers) <= {1.0, 2.0}
            assert answers[-1] == 2.0
        path.with_suffix(".bad").write_bytes(b"x" * 100)
        path.with_suffix(".bad").replace(path)
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert "the files are not loaded again, and the old ones are served" in process.stderr.readline()
        assert post(url) == 2.0
        process.terminate()
        assert process.wait(20) == 0
