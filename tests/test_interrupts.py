"""Interrupts during imports and probes of libraries, which turn KeyboardInterrupt into an error of their own."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delegate.backend.info import Availability, BackendInfo
from delegate.backend.state import load_part, probe_backend, probe_plugin
from delegate.cli.models import load_model
from delegate.cli.user_modules import import_module, import_modules
from delegate.common.interrupts import error_chain, interruptible
from delegate.plugins import Plugin, load_object
from delegate.quantization.calibration import _call
from delegate.runtime import delegates

NAMES = iter(range(10**6))
BODIES = {
    "an error": "raise ImportError('initialization failed') from None",
    "an exit": "raise SystemExit(1) from None",
    "nothing": "pass",
    "an interrupt": "raise",
}


def interrupted(body: str) -> str:
    """Return the source of a module that is interrupted, and makes something of it, as native code does."""
    return f"""
import signal
def work(*_):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        {body}
"""


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that is interrupted during its import."""
    name = f"interrupted_{next(NAMES)}"
    (tmp_path / f"{name}.py").write_text(interrupted(BODIES[request.param]) + "work()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def info(**parts: Any) -> BackendInfo:
    return BackendInfo(
        **{"name": "x", "description": "", "aot": "", "runtime": "", "install": "", "probe": lambda: None, **parts}
    )


IMPORTS: dict[str, Callable[[str], object]] = {
    "load_object": lambda name: load_object(f"{name}:work"),
    "a plugin": lambda name: probe_plugin(Plugin("x", "x", "1", f"{name}:work")),
    "a part": lambda name: load_part(info(runtime=f"{name}:work"), "runtime"),
    "--import": lambda name: import_modules([name]),
    "a module": lambda name: import_module(name, "a test"),
    "a model": lambda name: load_model(f"{name}:work"),
    "calibration": lambda name: _call(f"{name}:work", ""),
}


@pytest.mark.parametrize("module", BODIES, indirect=True)
@pytest.mark.parametrize("name", IMPORTS)
def test_imports(name: str, module: str) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        IMPORTS[name](module)
    assert signal.getsignal(signal.SIGINT) is before


def work_of(body: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(interrupted(BODIES[body]), namespace)
    work: Callable[..., Any] = namespace["work"]
    return work


SPEC: Any = SimpleNamespace(name="x_0", backend="x")
FALLBACKS: Any = SimpleNamespace(create_fallback=lambda *_: None, with_fallback=lambda *_: None)
CALLS: dict[str, Callable[[Callable[..., Any]], object]] = {
    "a probe": lambda work: probe_backend(info(probe=work), Plugin("x", "x", "1", "x:x")),
    "a delegate": lambda work: delegates._init_required(work, SPEC, lambda: ""),
    "a delegate with a fallback": lambda work: delegates._with_fallback(work, SPEC, FALLBACKS),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, body: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        CALLS[name](work_of(body))


def test_without_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible():
        assert signal.getsignal(signal.SIGINT) is not before
    with pytest.raises(ValueError, match="x"), interruptible(), interruptible():
        raise ValueError("x")
    assert signal.getsignal(signal.SIGINT) is before
    assert probe_backend(info(probe=lambda: Availability(ok=True)), Plugin("x", "x", "1", "x:x")).state == "ok"


def test_handlers_of_the_program() -> None:
    """One that raises nothing is called, and one that a library sets stays."""
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with interruptible():
            signal.raise_signal(signal.SIGINT)
        assert calls == [signal.SIGINT]
        with interruptible():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with interruptible():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads() -> None:
    results: list[object] = []

    def work() -> None:
        with interruptible():
            results.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [signal.getsignal(signal.SIGINT)]


def test_an_error_that_is_its_own_cause_has_a_chain_that_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(error_chain(first)) == [first, second]
