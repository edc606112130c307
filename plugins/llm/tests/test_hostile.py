"""Files of strangers: readers neither fail nor wait, and look at a file before they open it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from delegate_llm.runtime.adapter import FIRST, RANKS, SECOND, read_adapter
from delegate_llm.runtime.tokenizer_format import check_tokenizer
from safetensors.numpy import save
from typer.testing import CliRunner

from delegate.cli.app import app
from delegate.errors import DelegateError
from tests.support.language_models import tokenizer
from tests.support.mutations import check_bytes, check_values, errors
from tests.support.zoo import libraries

with libraries():
    from delegate_llm.aot.source import read as read_source

PLACES = {FIRST: (2, 4, 8), SECOND: (2, 4, 8), RANKS: (2,)}
STATES = {f"model.q.{name}": np.zeros(shape, np.float32) for name, shape in PLACES.items()}
ADAPTER = {"peft_type": "LORA", "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "x/Base",
           "alpha_pattern": {"q": 3}, "use_rslora": False, "init_lora_weights": True}  # fmt: skip
MATRICES = save(
    {f"base_model.model.q.lora_{k}.weight": np.ones(s, np.float32) for k, s in (("A", (2, 8)), ("B", (8, 2)))}
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- random changes ----------------------------------------------------------------------------------------------------


def use_tokenizer(text: str) -> None:
    with errors(ValueError):
        check_tokenizer(text.encode("utf-8", "surrogatepass"), 300)


def use_adapter(content: str | bytes) -> None:
    """Read an adapter whose configuration is this text, or whose matrices are these bytes."""
    os.makedirs("adapter", exist_ok=True)
    config = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else json.dumps(ADAPTER).encode()
    Path("adapter/adapter_config.json").write_bytes(config)
    Path("adapter/adapter_model.safetensors").write_bytes(content if isinstance(content, bytes) else MATRICES)
    read_adapter(Path("adapter"), STATES, "Base")


def test_changed_tokenizers() -> None:
    value = json.loads(tokenizer().to_str())
    check_values(value, json.dumps, use_tokenizer)
    check_bytes(json.dumps(value).encode(), lambda content: use_tokenizer(content.decode("utf-8", "replace")))


def test_changed_adapters() -> None:
    check_values(ADAPTER, json.dumps, use_adapter)
    check_bytes(json.dumps(ADAPTER).encode(), lambda content: use_adapter(content.decode("utf-8", "replace")))
    check_bytes(MATRICES, use_adapter)


# -- pipes and devices -------------------------------------------------------------------------------------------------


def model_folder(path: Path) -> None:
    """Read a folder of a language model whose files are all this one."""
    folder = path.parent / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).symlink_to(path)
    read_source(folder)


def adapter(path: Path) -> None:
    folder = path.parent / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (folder / "adapter_model.safetensors").symlink_to(path)
    read_adapter(folder, {}, "")


def command(*words: str) -> Callable[[Path], None]:
    def call(path: Path) -> None:
        done = CliRunner().invoke(app, ["llm", words[0], str(path), *words[1:]])
        assert done.exit_code in (1, 2), done.output
        raise DelegateError(done.stderr)

    return call


READERS: dict[str, Callable[[Path], object]] = {
    "model folder": model_folder, "adapter": adapter, "configuration": read_source,
    "run": command("run", "-p", "x"), "export": command("export", "-o", "x.dlg"),
}  # fmt: skip


@pytest.fixture
def limit() -> Iterator[None]:
    """End a test that waits."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises((DelegateError, OSError)):
        READERS[name](path)


@pytest.mark.parametrize("name", ["configuration", "run", "export"])
def test_a_name_that_no_file_has(name: str, tmp_path: Path) -> None:
    with pytest.raises((DelegateError, OSError)) as caught:
        READERS[name](tmp_path / ("x" * 300))
    if isinstance(caught.value, DelegateError):
        assert "--debug" not in str(caught.value), caught.value  # the remedy of errors that are not of this project
