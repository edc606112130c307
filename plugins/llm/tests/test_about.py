"""Files of language models that describe themselves wrongly: errors in plain words, before anything is allocated."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from delegate_llm.runtime.about import ChatFormat
from delegate_llm.runtime.model import Model
from torch import nn
from torch.export import export

import delegate
from delegate.errors import InputError, ProgramError
from tests.support.language_models import tokenizer
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    from delegate_llm.aot.decoder import CacheBuffer
    from delegate_llm.aot.export import Data

CHAT = asdict(ChatFormat("a", None, "", "b", "c", False))
ABOUT: dict[str, Any] = {
    "family": "llama", "context": 8, "chunk": 4, "conversations": 2, "guesses": 0, "vocabulary": 300, "weights": "int8",
    "cache": "float32", "lora_rank": 0, "base": "Base", "ends": [299], "chat": CHAT,
}  # fmt: skip


class Layers(nn.Module):
    """A decoder that does nothing but write its cache."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.ModuleList([CacheBuffer((2, 1, 8, 4), "float32")])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.keys[0].entries.add_(1)
        return tokens * 2.0


def save_program(path: Path, **stored: object) -> Path:
    """Save a program with the methods of a language model, of which some may be replaced."""
    layers, given = Layers(), (torch.zeros(4, dtype=torch.int64),)
    methods = {name: export(layers, given) for name in ("prefill", "decode")}
    methods["head"] = export(nn.Linear(4, 300), (torch.zeros(1, 4),))
    for name, value in {"about": ABOUT, **stored}.items():
        module = value if isinstance(value, nn.Module) else Data(json.dumps(value).encode())
        methods[name] = export(module, (torch.zeros(2),) if isinstance(value, nn.ReLU) else ())
    delegate.to_backend(methods, []).save(path / "m.dlg")
    return path / "m.dlg"


class Number(nn.Module):
    """A method that returns a number."""

    def forward(self) -> torch.Tensor:
        return torch.tensor(2**50)


class Several(Data):
    """A method that returns its bytes twice."""

    def forward(self) -> Any:
        return self.data.clone(), self.data.clone()


def test_a_description(tmp_path: Path) -> None:
    model = Model(save_program(tmp_path))
    assert model.about == ABOUT
    assert model.chat == ChatFormat(**CHAT)
    assert model.tokenizer is None


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"context": None}, "context should be a whole number from 1 to 2,147,483,647, not None"),
        ({"context": 9}, "describes 2 conversations of 9 tokens, but the states are not caches for them"),
        ({"conversations": 10**9}, "1000000000 conversations of 8 tokens, but the states are not"),
        ({"conversations": True}, "conversations should be a whole number"),
        ({"chunk": 0}, "chunk should be a whole number from 1"),
        ({"chunk": -1}, "chunk should be a whole number from 1"),
        ({"chunk": 4.0}, "chunk should be a whole number from 1"),
        ({"guesses": -1}, "guesses should be a whole number from 0"),
        ({"vocabulary": "300"}, "vocabulary should be a whole number"),
        ({"vocabulary": 301}, "describes 301 tokens, but method head does not return as many"),
        ({"ends": 299}, "ends should be a list"),
        ({"ends": ["a"]}, r"ends\[0\] should be a whole number"),
        ({"ends": [2**63]}, r"ends\[0\] should be a whole number"),
        ({"lora_rank": "8"}, "lora_rank should be a whole number"),
        ({"base": 1}, "base should be a text"),
        ({"base": "x" * 1025}, "base should be a text of 0 to 1,024 characters"),
        ({"chat": []}, "chat should be an object"),
        ({"chat": CHAT | {"strips": "no"}}, "chat.strips should be true or false"),
        ({"chat": {"start": ""}}, "chat lacks after_answer"),
        ({"chat": CHAT | {"start": 7}}, "chat.start should be a text"),
        ({"chat": CHAT | {"before_system": 1}}, "chat.before_system should be a text"),
        ({"chat": CHAT | {"after_user": None}}, "chat.after_user should be a text"),
    ],
    ids=str,
)
def test_values_out_of_range(changes: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=f"method about .*{match}.*delegate llm export"):
        Model(save_program(tmp_path, about=ABOUT | changes))


@pytest.mark.parametrize(
    ("stored", "match"),
    [
        ({"about": Number()}, "method about should have no inputs and return bytes"),
        ({"about": Several(b"{}")}, "method about should have no inputs and return bytes"),
        ({"about": nn.ReLU()}, "method about should have no inputs and return bytes"),
        ({"about": []}, "does not describe a language model, it should be an object"),
        ({"head": Data(b"ab")}, "300 tokens, but method head does not return as many"),
    ],
    ids=str,
)
def test_methods_that_return_something_else(stored: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=match):
        Model(save_program(tmp_path, **stored))


@pytest.mark.parametrize(
    ("stored", "match"),
    [
        (Number(), "method tokenizer should have no inputs and return bytes"),
        ({}, "its tokenizer cannot be used, it lacks model"),
        (
            json.loads(tokenizer().to_str()) | {"decoder": 1},
            "its tokenizer cannot be used, decoder should be an object",
        ),
    ],
    ids=["a number", "nothing", "a decoder that is a number"],
)
def test_tokenizers_of_programs(stored: object, match: str, tmp_path: Path) -> None:
    model = Model(save_program(tmp_path, tokenizer=stored))
    with pytest.raises(ProgramError, match=match):
        model.tokens("Hi")


def test_states_that_are_no_places_for_adapters(tmp_path: Path) -> None:
    import numpy as np
    from delegate_llm.runtime.adapter import FIRST, RANKS, SECOND, read_adapter
    from safetensors.numpy import save_file

    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 1}))
    names = {f"base_model.model.q_proj.lora_{kind}.weight": np.ones((2, 2), np.float32) for kind in "AB"}
    save_file(names, tmp_path / "adapter_model.safetensors")
    for first, second, ranks in ((2, 3, 1), (3, 2, 1), (3, 3, 0), (3, 3, None)):
        shapes = {FIRST: first, SECOND: second, RANKS: ranks}
        states = {f"model.q_proj.{n}": np.ones((2,) * d, np.float32) for n, d in shapes.items() if d is not None}
        with pytest.raises(InputError, match="no place for an adapter of layer 'q_proj'"):
            read_adapter(tmp_path, states, "")
