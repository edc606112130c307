"""Packed weights are shared by methods, loads and processes; no fault of their file is ever seen in an answer."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.backends.xnnpack.runtime import litert, sharing
from tests.support.lowering import assert_runs, assert_same

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files in memory exist only on Linux")
WIDTH, MIDDLE = 1024, 2200  # 18 MB of weights in two layers

# A process that loads the program and runs both methods: prints a digest of the results, and how often it packed.
RUN = """
import hashlib, json, os, sys
import numpy as np
import delegate
from delegate.backends.xnnpack.runtime import sharing

packs, pack = [], sharing._pack
sharing._pack = lambda *arguments: packs.append(1) or {BEFORE} or pack(*arguments)
program = delegate.load(sys.argv[1], **json.loads(sys.argv[2]))
x = np.random.default_rng(0).standard_normal(({ROWS}, {WIDTH})).astype(np.float32)
results = [program.method("decode")(x[:1]), program.method("prefill")(x)]
assert np.array_equal(program.context().method("prefill")(x), results[1])
digest = hashlib.sha256(b"".join(r.tobytes() for r in results)).hexdigest()
{AFTER}
program.close()
print(json.dumps([digest, len(packs)]))
"""
ROWS = 5
CODE = RUN.replace("{WIDTH}", str(WIDTH)).replace("{ROWS}", str(ROWS))


def code(before: str = "0", after: str = "") -> str:
    return CODE.replace("{BEFORE}", before).replace("{AFTER}", after)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, MIDDLE), nn.GELU(), nn.Linear(MIDDLE, WIDTH)).eval()


@pytest.fixture(scope="module")
def program(module: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharing") / "both.dlg"
    rows = {"decode": 1, "prefill": ROWS}
    exported = {name: torch.export.export(module, (torch.randn(n, WIDTH),)) for name, n in rows.items()}
    program = delegate.to_backend(exported, "xnnpack")
    assert_runs(program, "xnnpack")
    program.save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packed"


def start(program: Path, options: Any = None, **parts: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code(**parts), str(program), json.dumps(options or {})]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the digest of a process's results, and how often it packed weights; check that it prints no errors."""
    out, err = process.communicate(timeout=300)
    own = err.replace("INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n", "")
    assert (process.returncode, own) == (0, ""), err
    digest, packs = json.loads(out)
    return digest, packs


def run(program: Path, options: Any = None, **parts: str) -> tuple[str, int]:
    return ended(start(program, options, **parts))


@pytest.fixture(scope="module")
def answer(program: Path) -> str:
    """Return the digest of a process without a file of packed weights."""
    return run(program, {}, before="(_ for _ in ()).throw(RuntimeError())")[0]


def test_two_methods_pack_once_and_a_second_process_not_at_all(program: Path, folder: Path, answer: str) -> None:
    assert [run(program), run(program)] == [(answer, 1), (answer, 0)]
    (file,) = folder.iterdir()
    weights = 4 * 2 * WIDTH * MIDDLE
    assert weights < file.stat().st_size < 1.1 * weights


@pytest.mark.parametrize("how", ["environment", "option"])
def test_without_the_cache_methods_share_all_the_same(
    program: Path, folder: Path, answer: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}
    if how == "environment":
        monkeypatch.setenv("DELEGATE_CACHE", "off")
    else:
        options = {"options": {"xnnpack": {"weight_cache": False}}}
    assert [run(program, options) for _ in range(2)] == [(answer, 1)] * 2
    assert not folder.exists()


def test_isolated(program: Path, folder: Path, answer: str) -> None:
    assert run(program, {"isolate": True})[0] == answer
    assert len(list(folder.iterdir())) == 1
    assert run(program) == (answer, 0)


def test_several_processes_at_once(program: Path, folder: Path, answer: str) -> None:
    processes = [start(program) for _ in range(3)]
    assert [ended(process)[0] for process in processes] == [answer] * 3
    assert len(list(folder.iterdir())) == 1
    assert run(program) == (answer, 0)


def test_one_that_is_killed_while_it_packs(program: Path, folder: Path, answer: str) -> None:
    process = start(program, before="os.kill(os.getpid(), 9)")
    process.communicate()
    assert process.returncode == -9
    assert run(program) == (answer, 1)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _alter(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(64))


def _swap(path: Path) -> None:
    """Replace the weights by others."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + content[4096:-4096][::-1] + content[-4096:])


@pytest.mark.parametrize("damage", [_cut, _alter, _swap])
def test_a_damaged_file_is_packed_again(
    program: Path, folder: Path, answer: str, damage: Callable[[Path], None]
) -> None:
    assert run(program) == (answer, 1)
    damage(next(folder.iterdir()))
    assert [run(program), run(program)] == [(answer, 1), (answer, 0)]


def test_a_folder_that_cannot_be_written(program: Path, folder: Path, answer: str) -> None:
    folder.parent.mkdir()
    folder.write_text("a file where a folder should be")
    assert run(program) == (answer, 1)


def descriptors() -> int:
    gc.collect()  # a program's file is closed with its last reference
    return len(os.listdir("/proc/self/fd"))


def test_closed_programs_free_everything(program: Path) -> None:
    def once(close: bool) -> int:
        loaded = delegate.load(program)
        loaded.method("decode")(np.zeros((1, WIDTH), np.float32))
        if close:
            loaded.close()
        del loaded
        return descriptors()

    once(True)
    before = descriptors()
    assert once(True) == before
    once(False)
    assert descriptors() == before
    assert len(sharing._OPEN) == 0


def test_weights_of_others_are_not_shared(module: nn.Module, program: Path, tmp_path: Path) -> None:
    """Check that another bias gives another key."""
    first = delegate.load(program)
    keys = set(sharing._OPEN.keys())
    assert len(keys) == 1
    with torch.no_grad():
        module[0].bias[0] += 1
    try:
        exported = torch.export.export(module, (torch.randn(1, WIDTH),))
        other = delegate.to_backend(exported, "xnnpack")
        assert_runs(other, "xnnpack")
        other.save(tmp_path / "other.dlg")
        x = torch.randn(1, WIDTH)
        second = delegate.load(tmp_path / "other.dlg")
        assert len(sharing._OPEN) == 2
        assert keys < set(sharing._OPEN.keys())
        with torch.no_grad():
            assert_same(second(x), module(x))
    finally:
        with torch.no_grad():
            module[0].bias[0] -= 1
    first.close()


def test_the_library_frees_rejected_models(program: Path) -> None:
    """Check that an invalid model is rejected, and its resources are freed."""
    before = descriptors()
    memory = os.memfd_create("no model")
    os.write(memory, b"nonsense" * 100)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="failed with status"):
            litert.CompiledModel(memory, (), (), 1, os.memfd_create("packed"))
    os.close(memory)
    assert descriptors() <= before + 3  # where a model is refused, LiteRT has not taken the other file
    assert sharing.library() is not None


def test_threads_and_models_of_any_size_share_memory(tmp_path: Path, module: nn.Module, folder: Path) -> None:
    """Alternate two dynamic partitions in two threads, with growing and shrinking numbers of rows."""
    rows = ({0: torch.export.Dim("rows", min=2, max=64)},)
    deeper = nn.Sequential(module, nn.Tanh(), nn.Linear(WIDTH, 4096)).eval()  # more goes out of it
    models: dict[str, nn.Module] = {"one": module, "two": deeper}
    example = (torch.randn(8, WIDTH),)
    exported = {name: torch.export.export(m, example, dynamic_shapes=rows) for name, m in models.items()}
    program = delegate.to_backend(exported, "xnnpack")
    assert_runs(program, "xnnpack")
    program.save(tmp_path / "dynamic.dlg")
    loaded = delegate.load(tmp_path / "dynamic.dlg")
    inputs = [torch.randn(n, WIDTH) for n in (3, 64, 2, 64, 7)]
    with torch.no_grad():
        expected = {name: [m(x).numpy() for x in inputs] for name, m in models.items()}

    def work(names: Sequence[str]) -> None:
        context = loaded.context()
        for _ in range(3):
            for number, x in enumerate(inputs):
                for name in names:
                    got = context.method(name)(x.numpy())
                    assert_same(got, expected[name][number])

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, names) for names in (("one", "two"), ("two", "one"))]:
            future.result()
    loaded.close()


def test_a_small_program_shares_on_request(tmp_path: Path, folder: Path) -> None:
    """Check that a program of 1.1 MB has no file of packed weights by default, and the same results with one."""
    module = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 32)).eval()
    x = torch.randn(1, 512)
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert_runs(program, "xnnpack")
    program.save(tmp_path / "small.dlg")
    with delegate.load(tmp_path / "small.dlg") as loaded:
        expected = loaded(x.numpy())
    assert not folder.exists()
    for _ in range(2):  # it packs, and reads the file
        with delegate.load(tmp_path / "small.dlg", options={"xnnpack": {"weight_cache": True}}) as loaded:
            assert np.array_equal(loaded(x.numpy()), expected)
    assert len(list(folder.iterdir())) == 1
