"""Weights lie beside the blob, so that a file holds once what methods share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import delegate
from delegate.errors import DelegateError
from delegate.program.file import serialize
from tests.support.cases.shared_weights import X, changed, check_file_size, layers
from tests.support.language_models import PROMPT, made, reference
from tests.support.placing import decibels
from tests.support.silence import silence  # noqa: F401 - for every test here


def lower_model(module: nn.Module) -> delegate.DelegatedProgram:
    return delegate.to_backend(torch.export.export(module, (X,)), "onnxruntime")


def test_two_methods_share_them(tmp_path: Path) -> None:
    check_file_size("onnxruntime", tmp_path)


def test_a_tied_embedding_and_head_share_them(tmp_path: Path) -> None:
    """The head reads the transposed table, which the session transposes when it is opened."""
    source, model = made(tmp_path, "qwen3", weights="int8", backends=["onnxruntime"])
    program = model.program.program
    assert {spec.backend for spec in program.delegates} == {"onnxruntime"}
    size = source.config.vocab_size * source.config.hidden_size
    assert len({bytes(segment) for segment in program.segments if memoryview(segment).nbytes == size}) == 1
    expected = reference(source)(torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    assert decibels(torch.from_numpy(model.conversation().feed(PROMPT)), expected) > 15
    model.program.close()


def test_no_stack_trace_is_in_a_file() -> None:
    """Torch's exporter adds the stack trace of each node, with the folders of the model's author."""
    file = Path(__file__).name.encode()

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sigmoid()

    program = delegate.to_backend(torch.export.export(Net(), (X,)), "onnxruntime").program
    (spec,) = program.delegates
    assert file not in bytes(program.segments[spec.segment])


@pytest.mark.parametrize("place", [-1, 99, 1.5, "0", None, [0]])
def test_a_weight_that_is_not_there(place: object) -> None:
    program = lower_model(layers()).program
    (spec,) = program.delegates
    name, dtype, shape, _ = spec.compile_specs["weights"][0]
    with pytest.raises(DelegateError, match="onnxruntime"):
        delegate.load(serialize(changed(program, weights=[[name, dtype, shape, place]])))
