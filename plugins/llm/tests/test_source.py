"""Sources of language models: weights stay in the type of their file, and exports need little memory beside them."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from delegate_llm.runtime.model import Model

from delegate.errors import ExportError
from delegate.testing import assert_same
from tests.support.language_models import PROMPT, configuration
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    import transformers
    from delegate_llm import Options, export
    from delegate_llm.aot.source import read
    from delegate_llm.aot.weights import quantize_weights

SIZES = {"hidden_size": 96, "head_dim": 24, "intermediate_size": 192}  # the root of 96 has more digits than bfloat16


def save(folder: Path, family: str, dtype: torch.dtype, **changes: object) -> Path:
    """Save a random model whose numbers are exact in bfloat16, in this type."""
    folder.mkdir()
    with libraries():
        model = read(configuration(folder, family, **changes)).load()
        model.to(torch.bfloat16).to(dtype).save_pretrained(folder)
    return folder


ROWS = torch.arange(64).view(1, 64)
KINDS = {  # the type of weights, and options of the quantization
    "float32": ("float32", {}), "int8": ("int8", {}), "int4": ("int4", {}), "gptq": ("int4", {"rows": ROWS}),
    "head in int4": ("int4", {"head_weights": "int4"}),
}  # fmt: skip


@pytest.mark.parametrize("family", ["gemma", "llama"])
def test_half_precision_has_the_numbers_of_float32(family, tmp_path):
    sources = []
    for dtype in (torch.float32, torch.bfloat16):
        source = read(save(tmp_path / str(dtype), family, dtype, **SIZES), without_tokenizer=True)
        assert source.load().base_model.layers[0].mlp.up_proj.weight.dtype is dtype
        sources.append(source)
    for weights, options in KINDS.values():
        models = [source.load() for source in sources]
        for model in models:
            quantize_weights(model, weights, **options)
        wide, half = ([*_numbers(model)] for model in models)
        assert len(wide) == len(half)
        for a, b in zip(wide, half, strict=True):
            assert a.dtype is b.dtype
            assert_same(b, a, tolerance=0)


def _numbers(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors of a model, with the parts of quantized weights one by one."""
    for tensor in (*model.parameters(), *model.buffers()):
        parts = [getattr(tensor, name) for name in getattr(tensor, "tensor_data_names", ())]
        yield from parts or [tensor]


def test_half_precision_has_the_logits_of_float32(tmp_path):
    logits = []
    for dtype in (torch.float32, torch.bfloat16):
        folder = save(tmp_path / str(dtype), "gemma", dtype, **SIZES, num_hidden_layers=1)
        export(read(folder, without_tokenizer=True), folder / "m.dlg", Options(context=64, chunk=16))
        logits.append(Model(folder / "m.dlg").conversation().feed(PROMPT))
    assert_same(logits[1], logits[0], tolerance=0)


def test_weights_in_several_files(tmp_path):
    """The index names the files; a folder may have others, such as the same weights in another format."""
    folder = save(tmp_path / "m", "llama", torch.bfloat16)
    expected = read(folder, without_tokenizer=True).load()
    with libraries():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        model.save_pretrained(tmp_path / "s", max_shard_size="50KB")
    assert len(list((tmp_path / "s").glob("*.safetensors"))) > 1
    (folder / "model.safetensors").rename(tmp_path / "s" / "consolidated.safetensors")
    loaded = read(tmp_path / "s", without_tokenizer=True).load()
    assert_same(dict(loaded.state_dict()), dict(expected.state_dict()), tolerance=0)


def test_files_of_several_types_are_loaded_in_float32(tmp_path):
    folder = save(tmp_path / "m", "llama", torch.bfloat16)
    with libraries():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        model.lm_head.to(torch.float32)
        with torch.no_grad():
            model.lm_head.weight[0] = 1 / 3
        model.save_pretrained(folder)
    model = read(folder, without_tokenizer=True).load()
    assert model.name_or_path == str(folder)  # the base of its adapters
    head = model.lm_head.weight
    assert head.dtype is torch.float32
    assert_same(head[0], torch.full_like(head[0], 1 / 3), tolerance=0)


def test_a_folder_is_loaded_once_for_an_export_and_its_model_is_not_kept(tmp_path, monkeypatch):
    folder, loads = save(tmp_path / "m", "llama", torch.float32, num_hidden_layers=1), []
    load = transformers.LlamaForCausalLM.from_pretrained

    def record(*args: object, **options: object) -> object:
        loads.append(args)
        return load(*args, **options)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", record)
    source = read(folder, without_tokenizer=True)
    first = source.load()
    assert len(loads) == 1
    for a, b in zip(_numbers(first), _numbers(source.load()), strict=True):
        assert_same(b, a, tolerance=0)
    assert len(loads) == 2
    model = weakref.ref(first)
    del first
    gc.collect()
    assert model() is None


_EXPORT = """
import json, sys
from pathlib import Path
import torchao.quantization
from delegate_llm import Options, export
from delegate_llm.aot.source import read
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
folder = Path(sys.argv[1])
options = Options(context=32, chunk=8, **json.loads(sys.argv[3]))
export(read(Path(sys.argv[2]), True), folder / "small.dlg", options)
before = peak()  # with all modules that exports import
export(read(folder, True), folder / "m.dlg", options)
print(peak() - before)
"""


WIDE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 4000, "head_dim": 256}
TABLES = {**WIDE, "num_hidden_layers": 2, "vocab_size": 100_000, "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A small model, one whose weights are mostly in layers, and one with most in its embedding."""
    folder = tmp_path_factory.mktemp("models")
    changes: dict[str, dict[str, object]] = {"small": {}, "layers": WIDE, "tables": TABLES}
    return {name: save(folder / name, "llama", torch.bfloat16, **own) for name, own in changes.items()}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("layers", {}),
        ("layers", {"weights": "int8"}),
        ("layers", {"prefill_weights": "int8"}),
        ("tables", {"weights": "int8", "prefill_weights": "int4"}),
    ],
    ids=str,
)
def test_an_export_needs_at_most_twice_the_weights(model, options, folders):
    """With the weights in float32, it would need 3.6 times the weights in half precision."""
    folder = folders[model]
    command = [sys.executable, "-c", _EXPORT, str(folder), str(folders["small"]), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) / (folder / "model.safetensors").stat().st_size < 2


def test_a_file_in_the_format_of_others(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 40)
    with pytest.raises(ExportError, match=r"a model in the format GGUF, not a folder .*pass the model's folder"):
        read(tmp_path / "model.gguf")
