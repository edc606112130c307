"""LoRA adapters in PEFT's format: the matrices by which a conversation changes the linear layers of a program.

https://huggingface.co/docs/peft/developer_guides/checkpoint describes the two files of an adapter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from delegate.common.field_checks import fault
from delegate.common.files import read_bytes
from delegate.errors import InputError
from delegate.kernels.half_precision import from_bfloat16
from delegate.plugins import one_line
from delegate.runtime.context import Context
from delegate_llm.runtime.json_types import number_type
from delegate_llm.runtime.sampling import Array

# The states of a linear layer: (conversations, rank, inputs), (conversations, rank, outputs), (conversations).
FIRST, SECOND, RANKS = "lora_first", "lora_second", "lora_ranks"
_MODEL, _PEFT = "model.", "base_model.model."  # before the names of layers: in states, and in PEFT's tensors
_FILES = ("adapter_config.json", "adapter_model.safetensors")
_SUPPORTED: Mapping[str, tuple[Any, ...]] = {  # values of fields of the configuration
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", None),  # others change the weights of the base
}
_ALPHA = number_type(-1e30, 1e30)  # float32 has these numbers
_MOST_QUOTED = 40  # characters of a value in a message
_MOST_BYTES = 2**33  # of the matrices
_UNSUPPORTED = (  # fields that change what a layer computes, and must be empty
    "use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save", "target_parameters",
    "layer_replication", "trainable_token_indices", "alora_invocation_tokens", "arrow_config", "kasa_config",
    "monteclora_config", "velora_config",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter for the conversations of one program.

    Args:
        name: the name of its folder.
        matrices: Name of a linear layer's states -> its matrices: (rank, inputs) and (rank, outputs), float32.
    """

    name: str
    matrices: Mapping[str, tuple[Array, Array]]

    def attach(self, context: Context, row: int) -> None:
        """Write the matrices to the slot of a conversation, which is empty."""
        values: dict[str, Array] = {}
        parts: dict[str, Any] = {}
        for layer, (first, second) in self.matrices.items():
            rank = len(first)
            for name, value in ((FIRST, first[None]), (SECOND, second[None]), (RANKS, np.array([rank]))):
                values[f"{layer}.{name}"] = value
                parts[f"{layer}.{name}"] = (slice(row, row + 1), *([slice(rank)] if value.ndim > 1 else []))
        context.restore(values, parts)


def read_adapter(folder: Path, states: Mapping[str, Array], base: str) -> Adapter:
    """Return the adapter of a folder that PEFT saved.

    Args:
        folder: has adapter_config.json and adapter_model.safetensors.
        states: The program's states.
        base: the name of the program's model; empty: unknown.

    Raises:
        InputError: a file is missing or damaged, or the adapter does not fit the program.
    """
    config = _read_config(folder / _FILES[0])
    named = str(config.get("base_model_name_or_path") or "").rstrip("/").rpartition("/")[2]
    if base and named and named.lower() != base.lower():
        remedy = f"if the two are the same model, write {base!r} as base_model_name_or_path in {_FILES[0]}"
        raise InputError(f"it is an adapter of {named!r}, not of {base!r}", where=str(folder), remedy=remedy)
    tensors = _read_tensors(folder / _FILES[1])
    matrices: dict[str, tuple[Array, Array]] = {}
    for layer in _layers(tensors, folder):
        first, second = (tensors[f"{_PEFT}{layer}.lora_{kind}.weight"] for kind in "AB")
        _check_sizes(layer, first, second, states, folder)
        with np.errstate(over="ignore"):  # checked in the next line
            scaled = np.ascontiguousarray(second.T) * np.float32(_scaling(config, layer, len(first), folder))
        if not np.isfinite(scaled).all():
            what = f"the matrices of layer {layer!r} are not finite after the scaling by lora_alpha"
            raise InputError(what, where=str(folder), remedy="use a smaller lora_alpha, or train it again")
        matrices[_MODEL + layer] = np.ascontiguousarray(first), scaled
    return Adapter(folder.name, matrices)


def _read_config(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(read_bytes(file))
    except FileNotFoundError as error:
        remedy = "pass a folder that `save_pretrained` of a PEFT model wrote"
        raise InputError(f"there is no {file.name}", where=str(file.parent), remedy=remedy) from error
    except (ValueError, OSError, RecursionError) as error:
        raise InputError("this is no adapter configuration", where=str(file), remedy=fault(error)) from error
    if not isinstance(config, dict):
        raise InputError("this is no adapter configuration", where=str(file), remedy="it must be a JSON object")
    wrong = [field for field, supported in _SUPPORTED.items() if config.get(field) not in supported]
    wrong += [field for field in _UNSUPPORTED if config.get(field)]
    if wrong:
        what = f"adapters with {wrong[0]} = {json.dumps(config.get(wrong[0]))} are not supported"
        raise InputError(what, where=str(file), remedy="train it as LORA without this field")
    return config


def _read_tensors(file: Path) -> Mapping[str, Array]:
    """Return the tensors of a file in float32, by name."""
    from safetensors import SafetensorError, deserialize

    read: Callable[[bytes], list[tuple[str, Mapping[str, Any]]]] = deserialize
    try:
        return {name: _values(name, tensor, file) for name, tensor in read(read_bytes(file, _MOST_BYTES))}
    except FileNotFoundError as error:
        remedy = "save the adapter with safetensors, which PEFT does by default"
        raise InputError(f"there is no {file.name}", where=str(file.parent), remedy=remedy) from error
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise InputError("its matrices cannot be read", where=str(file), remedy=one_line(error)) from error


def _values(name: str, tensor: Mapping[str, Any], file: Path) -> Array:
    dtypes = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
    if tensor["dtype"] not in dtypes:
        what = f"tensor {name!r} has the type {tensor['dtype']}"
        raise InputError(what, where=str(file), remedy=f"save it as one of {', '.join(dtypes)}")
    values = np.frombuffer(tensor["data"], dtypes[tensor["dtype"]]).reshape(tensor["shape"])
    wide = from_bfloat16(values) if tensor["dtype"] == "BF16" else values.astype(np.float32)
    if not np.isfinite(wide).all():
        raise InputError(f"tensor {name!r} has values that are not finite", where=str(file), remedy="train it again")
    return wide


def _layers(tensors: Mapping[str, Array], folder: Path) -> Iterator[str]:
    """Yield the names of the layers, each of which has two matrices."""
    for name in tensors:
        layer, kind = name.removeprefix(_PEFT), ""
        for kind, other in (("A", "B"), ("B", "A")):
            if layer.endswith(f".lora_{kind}.weight") and name.startswith(_PEFT):
                layer = layer.removesuffix(f".lora_{kind}.weight")
                if (partner := f"{_PEFT}{layer}.lora_{other}.weight") not in tensors:
                    raise InputError(f"tensor {partner!r} is missing", where=str(folder), remedy="save it again")
                break
        else:
            remedy = "use an adapter that has matrices of linear layers alone"
            raise InputError(f"tensor {name!r} is not supported", where=str(folder), remedy=remedy)
        if kind == "A":
            yield layer
    if not tensors:
        raise InputError("the adapter has no matrices", where=str(folder), remedy="save it again")


def _check_sizes(layer: str, first: Array, second: Array, states: Mapping[str, Array], folder: Path) -> None:
    """Raise InputError if the matrices of a layer do not fit its states."""
    places = [states.get(f"{_MODEL}{layer}.{name}") for name in (FIRST, SECOND, RANKS)]
    if [None if place is None else place.ndim for place in places] != [3, 3, 1]:
        known = sorted({name.rpartition(".")[0].rpartition(".")[2] for name in states if name.endswith(RANKS)})
        what = f"the program has no place for an adapter of layer {layer!r}: it has places in {', '.join(known)}"
        remedy = "use an adapter of the same model, or export it again with more --lora-targets"
        raise InputError(what, where=str(folder), remedy=remedy)
    inputs, outputs = (states[f"{_MODEL}{layer}.{name}"] for name in (FIRST, SECOND))
    if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[1] or not len(first):
        what = f"the matrices of layer {layer!r} have the shapes {list(first.shape)} and {list(second.shape)}"
        raise InputError(what, where=str(folder), remedy="save it again")
    if (first.shape[1], second.shape[0]) != (inputs.shape[2], outputs.shape[2]):
        sizes = f"{first.shape[1]} inputs and {second.shape[0]} outputs, not {inputs.shape[2]} and {outputs.shape[2]}"
        remedy = "use an adapter of the model that the program was exported from"
        raise InputError(f"its layer {layer!r} has {sizes}", where=str(folder), remedy=remedy)
    if len(first) > inputs.shape[1]:
        what = f"the adapter has rank {len(first)}, and the program supports {inputs.shape[1]}"
        raise InputError(what, where=str(folder), remedy=f"export the program with --lora-rank {len(first)}")


def _scaling(config: Mapping[str, Any], layer: str, rank: int, folder: Path) -> float:
    """Return the factor of a layer's product: alpha / rank, or alpha / sqrt(rank) of rank-stabilized LoRA.

    `alpha_pattern` has another alpha of some layers, by the end of their names.
    """
    alpha, patterns = config.get("lora_alpha"), config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or not all(key.replace(".", "_").isidentifier() for key in patterns):
        remedy = "write the names of layers there, as in q_proj"
        raise InputError("alpha_pattern has other keys than names of layers", where=str(folder), remedy=remedy)
    alpha = next((patterns[key] for key in patterns if f".{layer}".endswith(f".{key}")), alpha)
    if alpha is None or not _ALPHA.fits(alpha):
        said = json.dumps(alpha)
        what = f"lora_alpha is {said if len(said) <= _MOST_QUOTED else said[:_MOST_QUOTED] + '...'}"
        raise InputError(what, where=str(folder), remedy=f"it must be {_ALPHA.expected}")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
