"""Option `tuning` of the backend cuda: what is measured, kept and used again, on the host's CPU by TVM."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from delegate_cuda.aot import tuning
from delegate_cuda.aot.tuning import Database, TuningRecord
from delegate_cuda.runtime import library
from delegate_cuda.runtime.library import CudaTarget
from torch import nn

import delegate
from delegate.errors import ConfigError, LoweringError
from tests.support.lowering import assert_same, compiled

pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install delegate-cuda")

torch.manual_seed(0)
X = torch.randn(1, 16, 14, 14)
MODULE = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 24, 1), nn.MaxPool2d(2)).eval()
RECORD = {"function": "0" * 16, "target": "llvm", "tvm": "0.27.0", "schedule": "parallel", "seconds": 0.001}
nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
no_gpu = pytest.mark.skipif(not library.probe().stand_in, reason="an NVIDIA GPU is here")


def lower_model(trials=None, database=None, arch="llvm", **rest) -> delegate.CompiledProgram:
    given = {} if database is None else {"tuning": {"trials": trials, "database": str(database)}}
    options = {"arch": arch, **given}
    return compiled(
        MODULE, (X,), config={"backends": [{"name": "cuda", "isolate": "none", "options": options}]}, **rest
    )


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def note(program):
    (partition,) = program.report.partitions
    return next(n for n in reversed(partition.notes) if not n.startswith("differs from torch"))


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """What was measured of MODULE with trials enough for all of it."""
    path = tmp_path_factory.mktemp("tuning") / "host.jsonl"
    assert f"tuned by {path}, {len(lines(path)) if path.exists() else ''}" in note(lower_model(200, path))
    return path


@pytest.mark.extended
def test_it_is_used_again_without_measuring_and_answers_stay_equal(database, monkeypatch):
    monkeypatch.setattr(tuning, "_seconds", lambda *_: pytest.fail("measured again"))
    plain = lower_model()(X)
    for trials in (0, 200):
        program = lower_model(trials, database)
        assert "0 schedules measured" in note(program)
        assert torch.equal(program(X), plain)


def test_other_schedules_are_really_taken(database, tmp_path):
    every = [line | {"seconds": 0.0 if line["schedule"] == "parallel" else 1.0} for line in lines(database)]
    path = tmp_path / "forged.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in every))
    lower_model(0, path).save(tmp_path / "forged.dlg")
    lower_model().save(tmp_path / "plain.dlg")
    assert (tmp_path / "forged.dlg").read_bytes() != (tmp_path / "plain.dlg").read_bytes()


def test_trials_are_a_limit_and_more_of_them_go_on(tmp_path):
    path = tmp_path / "few.jsonl"
    for trials, known in ((2, 2), (1, 3)):
        lower_model(trials, path)
        assert len({(line["function"], line["schedule"]) for line in lines(path)}) == known


def test_a_dynamic_batch_has_the_default_schedules(tmp_path):
    batch = ({0: torch.export.Dim("batch", min=2, max=8)},)
    options = {"arch": "llvm", "tuning": {"trials": 5, "database": str(tmp_path / "d")}}
    images = torch.cat([X, X, X])
    program = compiled(
        MODULE,
        (images,),
        config={"backends": [{"name": "cuda", "isolate": "none", "options": options}]},
        dynamic_shapes=batch,
    )
    assert "0 schedules measured" in note(program)
    assert_same(program(images[:2]), MODULE(images[:2]))


@no_gpu
def test_a_gpu_that_is_not_here_cannot_be_measured(tmp_path):
    with pytest.raises(LoweringError, match=r"sm_90 are measured on such a GPU, but no NVIDIA GPU.*trials: 0"):
        lower_model(10, tmp_path / "gpu.jsonl", "sm_90")
    assert not any(tmp_path.iterdir())


def test_nor_can_another_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "local_gpu", lambda: (CudaTarget("sm_80"), "A100"))
    with pytest.raises(LoweringError, match=r"this machine's A100 is sm_80.*: lower it on a machine with one, copy"):
        lower_model(10, tmp_path / "gpu.jsonl", "sm_90")


@nvcc
def test_a_database_from_elsewhere_serves_a_gpu_that_is_not_here(tmp_path, monkeypatch):
    path = tmp_path / "gpu.jsonl"
    with monkeypatch.context() as there:  # as on a machine with that GPU, without its times
        there.setattr(library, "local_gpu", lambda: (CudaTarget("sm_90"), "H100"))
        there.setattr(tuning, "_seconds", lambda function, target: float("threadIdx.y" not in function.script()))
        lower_model(200, path, "sm_90")
    assert {line["target"] for line in lines(path)} == {"sm_90"}
    assert "0 schedules measured" in note(lower_model(0, path, "sm_90"))


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "{}", json.dumps(RECORD | {"seconds": "fast"}), json.dumps(RECORD | {"more": 1})],
)
def test_a_broken_line_is_named(line, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text(f"{json.dumps(RECORD)}\n{line}\n")
    with pytest.raises(LoweringError, match=r"not a record \(.*broken\.jsonl:2\): delete that line"):
        lower_model(0, path)


def test_a_database_that_is_absent_or_a_directory(tmp_path):
    with pytest.raises(LoweringError, match=r"no tuning database \(.*none\.jsonl\): set trials"):
        lower_model(0, tmp_path / "none.jsonl")
    with pytest.raises(LoweringError, match="cannot be read or written"):
        lower_model(0, tmp_path)
    with pytest.raises(LoweringError, match=r"directory that you may write to"):
        lower_model(1, tmp_path / "absent" / "new.jsonl")


def full(*_):
    raise OSError("disk full")


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "kept.jsonl"
    path.write_text(json.dumps(RECORD) + "\n")
    database = Database(path)
    database.add(TuningRecord(**RECORD | {"seconds": None}))
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", full)
        with pytest.raises(LoweringError, match="disk full"):
            database.save()
    assert lines(path) == [RECORD]
    assert list(tmp_path.iterdir()) == [path]
    database.save()
    assert Database(path).times(RECORD["function"], "llvm", "0.27.0") == {"parallel": None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trials": -1, "database": "d"}, "trials"),
        ({"trials": 3}, "database"),
        ({"database": "d", "trails": 3}, "did you mean 'trials'"),
    ],
)
def test_wrong_options(given, message):
    options = {"arch": "llvm", "tuning": given}
    with pytest.raises(ConfigError, match=message):
        compiled(nn.ReLU(), (X,), config={"backends": [{"name": "cuda", "isolate": "none", "options": options}]})
