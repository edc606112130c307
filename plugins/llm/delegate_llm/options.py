"""The options of an export, which `delegate llm export` and `export` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from delegate.errors import ConfigError

Weights = Literal["float32", "int8", "int4"]
HeadWeights = Literal["int8", "int4"]
Rounding = Literal["nearest", "hqq", "gptq"]
Cache = Literal["float32", "float16", "bfloat16", "int8"]
BLOCKS = (32, 64, 128, 256)  # numbers of int4 weights that share a scale


@dataclass(frozen=True)
class Options:
    """Options of an export, which their help describes.

    One call of prefill computes tokens of several conversations. `prefill_weights` has more rows than decode, and None
    makes the file smaller. The head is float32 if `weights` is.
    """

    context: Annotated[int, typer.Option(metavar="N", help="Maximum number of tokens in a conversation.")] = 2048
    chunk: Annotated[int, typer.Option(metavar="N", help="Maximum number of prompt tokens in one call.")] = 64
    conversations: Annotated[int, typer.Option(metavar="N", help="Number of conversations that one call decodes.")] = 1
    weights: Annotated[Weights, typer.Option(case_sensitive=False, help="Type of the weights of linear layers.")] = (
        "int4"
    )
    prefill_weights: Annotated[
        Weights | None,
        typer.Option(case_sensitive=False, help="Type of these weights for prefill and batches, if different."),
    ] = None
    head_weights: Annotated[
        HeadWeights,
        typer.Option(
            case_sensitive=False, help="Type of the weights of the head. int8 shares those of a tied embedding."
        ),
    ] = "int8"
    block: Annotated[
        int, typer.Option(metavar="N", help="Number of int4 weights that share a scale: 32, 64, 128 or 256.")
    ] = BLOCKS[0]
    rounding: Annotated[
        Rounding,
        typer.Option(
            case_sensitive=False,
            help="Rounding of int4 weights. hqq fits scales; gptq fits weights to --calibration, which takes longer.",
        ),
    ] = "nearest"
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For gptq: a text like those of the use; with --no-tokenizer, numbers."),
    ] = None
    cache: Annotated[Cache, typer.Option(case_sensitive=False, help="Type of the stored keys and values.")] = "float32"
    guesses: Annotated[
        int, typer.Option(metavar="N", help="Number of guesses of a draft model that one call checks.")
    ] = 0
    lora_rank: Annotated[
        int, typer.Option(metavar="N", help="Maximum rank of LoRA adapters; 0: the program supports none.")
    ] = 0
    lora_targets: Annotated[
        str, typer.Option(metavar="NAMES", help="Layers that adapters may change, e.g. q_proj,v_proj. Default: all.")
    ] = ""

    def check(self) -> None:
        """Raise ConfigError if the options do not fit together."""
        if not 2 <= self.chunk <= self.context:
            remedy = "use a chunk of at least 2 tokens, and a context that is not smaller than the chunk"
            raise ConfigError(f"a chunk of {self.chunk} in a context of {self.context}", remedy=remedy)
        if self.guesses < 0 or self.guesses >= self.context:
            raise ConfigError(f"{self.guesses} guesses in a context of {self.context}", remedy="use 4, or 0 for none")
        if self.lora_rank < 0 or (self.lora_targets and not self.lora_rank):
            remedy = "use a rank of at least 1 for --lora-rank, or no --lora-targets"
            raise ConfigError(f"adapters of rank {self.lora_rank}", remedy=remedy)
        if self.conversations < 1:
            raise ConfigError(f"{self.conversations} conversations", remedy="use 1 or more")
        for name, value, known in (
            ("block", self.block, BLOCKS),
            ("cache", self.cache, get_args(Cache)),
            ("weights", self.weights, get_args(Weights)),
            ("prefill_weights", self.prefill_weights or self.weights, get_args(Weights)),
            ("head_weights", self.head_weights, get_args(HeadWeights)),
            ("rounding", self.rounding, get_args(Rounding)),
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}", remedy=f"choose one of: {', '.join(map(str, known))}")
        if self.weights == "float32" and self.head_weights == "int4":
            raise ConfigError("a head in int4 for layers in float32", remedy="use --weights int4 or int8")
        if self.rounding != "nearest" and "int4" not in (self.weights, self.prefill_weights, self.head_weights):
            raise ConfigError(f"rounding {self.rounding!r} is for int4 weights", remedy="use --weights int4")
        if (self.rounding == "gptq") != (self.calibration is not None):
            what = "rounding 'gptq' needs a text" if self.calibration is None else "only rounding 'gptq' reads a text"
            raise ConfigError(what, where="calibration", remedy="use --rounding gptq and --calibration FILE together")
