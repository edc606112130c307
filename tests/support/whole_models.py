"""Whole models on one backend, which runs every node: saved, loaded, compared with eager."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

import delegate
from tests.support import zoo
from tests.support.lowering import assert_same

QUICK = ("resnet18", "bert_mini")  # convolutions and attention: what the default run has of every backend


def check(
    name: str,
    backend: str,
    folder: Path,
    tolerance: float,
    options: Mapping[str, Any] | None = None,
    size: int | None = None,
) -> None:
    """Assert that a backend runs all of a model in one partition, with eager's results, also from a file.

    Args:
        name: the model in `zoo.ZOO`.
        backend: name of the backend.
        folder: an empty folder for the file.
        tolerance: the largest error, relative to the largest value of each result.
        options: of the backend.
        size: length of the inputs; None for the usual one.
    """
    module, inputs = zoo.make(name, size)
    config = {"backends": [{"name": backend, "options": dict(options or {})}]}
    program = delegate.to_backend(zoo.export(name, size), config=config)
    assert {n.backend for n in program.report.nodes} == {backend}, program.report
    assert len(program.report.partitions) == 1
    program.save(folder / "model.dlg")
    with delegate.load(folder / "model.dlg", trust_code=True) as loaded, torch.no_grad():
        actual = loaded.method("forward").run([x.numpy() for x in inputs])
        assert_same(list(actual), pytree.tree_leaves(module(*inputs)), tolerance)
