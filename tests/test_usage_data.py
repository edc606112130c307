"""Nothing contacts a network on its own: no library that this project imports sends usage data."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from delegate.processes.probing import surroundings
from delegate.usage_data import opt_out
from tests.support.network_audit import Audited, audit, unsupported
from tests.support.sources import ROOT

# Libraries that send usage data, or write files for it: as soon as they are imported, or with the requests of a user.
SENDS = {"onnxruntime", "openvino", "transformers"}
# Ray sends for a cluster that a process starts. This is also the only place that connects to one.
CONNECTS = "plugins/ray/delegate_ray/runtime/connection.py"
# Libraries that do not, as the tests of all commands in tests/e2e/test_network.py show.
SILENT = {
    "PIL", "ai_edge_litert", "flatbuffers", "google", "grpc", "httptools", "hypothesis", "llvmlite", "numba", "numpy",
    "onnx", "onnx_ir", "onnxruntime_ep_webgpu", "onnxruntime_qnn", "onnxscript", "opentelemetry", "orjson",
    "prometheus_client", "pyarrow", "pydantic", "pydantic_core", "pytest", "rich", "safetensors", "sklearn", "sympy",
    "tokenizers", "torch", "torchao", "torchvision", "tvm", "tvm_ffi", "typer", "uvicorn", "yaml",
}  # fmt: skip

CASES = {
    "a name": "import socket; socket.getaddrinfo('example.org', 80)",
    "a name from C, in a thread": """
        import ctypes, threading
        call = ctypes.CDLL(None).getaddrinfo
        thread = threading.Thread(target=call, args=(b"example.org", b"80", None, ctypes.byref(ctypes.c_void_p())))
        thread.start(); thread.join()
    """,
    "a connection": "import socket; socket.create_connection(('192.0.2.1', 443))",
    "a datagram": "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))",
    "a message": "import socket; socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('192.0.2.1', 9))",
    "a child": """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "import socket; socket.create_connection(('192.0.2.1', 443))"])
    """,
}

needs_audit = pytest.mark.skipif(bool(unsupported()), reason=unsupported())


def _run(code: str, **variables: str) -> Audited:
    lines = code.splitlines()
    return audit([sys.executable, "-c", "\n".join(line.removeprefix(" " * 8) for line in lines)], **variables)


@needs_audit
@pytest.mark.parametrize("name", CASES)
def test_an_audit_finds(name):
    assert _run(CASES[name]).attempts


@needs_audit
def test_an_audit_finds_files_in_the_home_but_no_sockets_of_this_machine(tmp_path):
    result = _run(f"""
        import os, pathlib, socket
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname())
        local = socket.socket(socket.AF_UNIX); local.bind({str(tmp_path / "local")!r}); local.listen()
        socket.socket(socket.AF_UNIX).connect(local.getsockname())
        assert not {{"CI", "ORT_DISABLE_TELEMETRY"}} & {{*os.environ}}
        pathlib.Path("~/id").expanduser().write_text("x")
    """)
    assert (result.code, result.attempts, result.files) == (0, (), ("id",)), result.output


@needs_audit
def test_no_probe_sends_usage_data():
    result = audit([sys.executable, "-m", "delegate", "backends", "--refresh", "--json"], DELEGATE_BLOCK_PLUGINS="")
    assert (result.attempts, result.files) == ((), ())
    assert any(backend["state"] == "ok" for backend in json.loads(result.output)["backends"])


def test_variables_that_the_user_has_set_stay(monkeypatch):
    monkeypatch.setenv("ACME_TELEMETRY", "1")
    monkeypatch.setenv("ACME_CALLS_HOME", "x")
    monkeypatch.delenv("ACME_CALLS_HOME")
    opt_out(variables={"ACME_TELEMETRY": "0", "ACME_CALLS_HOME": "no"})
    assert (os.environ["ACME_TELEMETRY"], os.environ["ACME_CALLS_HOME"]) == ("1", "no")


def test_opting_out_repeats_no_probe(monkeypatch):
    monkeypatch.delenv("ACME_TELEMETRY", raising=False)
    before = surroundings()
    monkeypatch.setenv("ACME_TELEMETRY", "0")
    assert surroundings() == before


def test_packages_that_send_are_not_found_unless_they_are_imported_already(monkeypatch, site):
    for name in ("acme_telemetry", "acme_statistics"):
        site.module(name, "")
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)  # what the test adds is removed after it
    import acme_statistics

    opt_out(packages=("acme_telemetry", "acme_statistics"))
    with pytest.raises(ImportError):
        import acme_telemetry  # noqa: F401
    assert sys.modules["acme_statistics"] is acme_statistics


def test_an_answer_of_the_user_counts(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.delenv("ACME_TELEMETRY", raising=False)
    (tmp_path / "consent").touch()
    opt_out(variables={"ACME_TELEMETRY": "0"}, packages=("acme_telemetry",), answers=("~/other", "~/consent"))
    assert "ACME_TELEMETRY" not in os.environ
    assert "acme_telemetry" not in sys.modules


def _sources() -> Mapping[Path, str]:
    folders = (ROOT / "delegate", *ROOT.glob("plugins/*/delegate_*"))
    return {file: file.read_text("utf-8") for folder in folders for file in folder.rglob("*.py")}


def imported_libraries(source: str) -> Iterator[str]:
    """Yield the packages of others that a module imports, late imports included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        tops = {name.partition(".")[0] for name in names}
        yield from (top for top in tops if top not in sys.stdlib_module_names and not top.startswith("delegate"))


@cache
def opts_out(package: Path) -> bool:
    """Return if a package or one that contains it calls `opt_out` before any of its modules is imported."""
    initial = package / "__init__.py"
    if not initial.exists():
        return False
    body = ast.parse(initial.read_text("utf-8")).body
    calls = {ast.unparse(node.value.func) for node in body if isinstance(getattr(node, "value", None), ast.Call)}
    imported = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    shared = [ROOT / name.replace(".", "/") for name in imported if name.startswith("delegate.")]
    return "opt_out" in calls or any(map(opts_out, (*shared, package.parent)))


@pytest.mark.extended
def test_a_library_that_sends_usage_data_is_imported_where_that_is_off():
    wrong = [
        f"{file.relative_to(ROOT)} imports {library}"
        for file, source in _sources().items()
        for library in imported_libraries(source)
        if library in SENDS and not opts_out(file.parent)
    ]
    assert wrong == []
    connecting = [str(file.relative_to(ROOT)) for file, source in _sources().items() if "ray.init(" in source]
    assert connecting == [CONNECTS]
    assert opts_out((ROOT / CONNECTS).parent)


@pytest.mark.extended
def test_every_library_has_been_audited():
    found = {library for source in _sources().values() for library in imported_libraries(source)}
    assert found == SENDS | SILENT | {"ray"}


def test_a_direct_import_is_found(tmp_path):
    (tmp_path / "__init__.py").write_text("import json\n")
    assert not opts_out(tmp_path)
    assert [*imported_libraries("def f():\n    from openvino.frontend import X")] == ["openvino"]
    assert opts_out(ROOT / "plugins/onnxruntime/delegate_onnxruntime/dsp/aot")
    assert not opts_out(ROOT / "delegate/backends")
