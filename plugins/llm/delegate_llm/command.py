"""`delegate llm`: export a language model of transformers, and generate text with the program, without torch.

`delegate --help` imports this module, so each function imports what it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from delegate.cli import options, output
from delegate.cli.commands import Command, Group, expand_groups
from delegate.cli.options import Kernels, TrustCode, backend_names
from delegate.errors import ConfigError, InputError
from delegate_llm.options import Options

if TYPE_CHECKING:
    from delegate_llm.runtime.adapter import Adapter
    from delegate_llm.runtime.model import Model
    from delegate_llm.runtime.sampling import Sampler
    from delegate_llm.runtime.tokenizer import Text

app = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)

_EXPORT_LIBRARIES = frozenset({"torch", "transformers", "torchao", "pydantic", "yaml"})
WhenFull = Literal["stop", "slide"]
Program = Annotated[Path, typer.Argument(metavar="FILE", help="A program file of `delegate llm export`.")]
Count = Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of tokens to generate.")]
Adapters = Annotated[
    list[Path] | None,
    typer.Option("--adapter", metavar="FOLDER", help="LoRA adapter in PEFT's format; repeat it for one per prompt."),
]


@dataclass(frozen=True)
class Sampling:
    """The options that say how tokens are chosen, and which words end an answer."""

    temperature: Annotated[
        float, typer.Option(metavar="X", help="0 selects the most likely token; larger values vary more.")
    ] = 0.0
    top_k: Annotated[
        int, typer.Option(metavar="N", help="Sample from this many of the most likely tokens; 0: from all.")
    ] = 0
    top_p: Annotated[
        float, typer.Option(metavar="X", help="Sample from the most likely tokens with this total probability.")
    ] = 1.0
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the sampling; equal seeds give equal tokens.")
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A word that ends the answer; may be repeated.")
    ] = None

    def make_sampler(self) -> Sampler:
        from delegate_llm.runtime.sampling import Sampler

        return Sampler(self.temperature, self.top_k, self.top_p, self.seed)


@app.callback()
def llm() -> None:
    """Export a language model of transformers, and generate text."""
    # Cached attention has threads of its own. NumPy, which no module before imports, reads this when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@app.command("export", cls=Command)
@expand_groups
def export(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A folder that transformers saved, or its configuration in JSON for random weights."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", callback=options.PROGRAM, help="Program file to write.")
    ],
    requested: Options,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="NAME",
            autocompletion=backend_names,
            help="Backend; repeat it in order of preference. Default: the fastest one for each method, measured.",
        ),
    ] = None,
    no_tokenizer: Annotated[
        bool, typer.Option("--no-tokenizer", help="Require no tokenizer; the program then reads token numbers.")
    ] = False,
) -> None:
    """Compile a language model to one program file."""
    try:
        from delegate_llm.aot.engines import engine_table
        from delegate_llm.aot.export import export as export_model
        from delegate_llm.aot.export import measure_engines
        from delegate_llm.aot.hugging_face import transformers
        from delegate_llm.aot.source import read
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXPORT_LIBRARIES:
            raise
        remedy = "pip install 'delegate-llm[export]'"
        raise ConfigError(f"the export needs {error.name}, which is not installed", remedy=remedy) from error
    requested.check()
    transformers.utils.logging.disable_progress_bar()
    source = read(model, without_tokenizer=no_tokenizer)
    with output.working(f"exporting {model}") as progress:
        engines = [] if backend else measure_engines(source, requested, progress)
        program = export_model(source, out, requested, engines or backend or None)
    if engines:
        output.show(engine_table(engines))
    output.show(program.report.summary, f"saved {out}, {out.stat().st_size:,} bytes")


@dataclass(frozen=True)
class _Request:
    """A model, the number of tokens to generate, and the words that end them earlier."""

    model: Model
    count: int
    stops: tuple[str, ...]
    as_numbers: bool

    def text(self) -> Text:
        from delegate_llm.runtime.tokenizer import Text

        return Text(None if self.as_numbers else self.model.tokenizer, self.stops)

    def tokens(self, text: str) -> list[int]:
        from delegate_llm.runtime.tokenizer import parse_tokens

        return list(parse_tokens(text)) if self.as_numbers else self.model.tokens(text)


@app.command("run", cls=Command)
@expand_groups
def run(
    path: Program,
    prompt: Annotated[
        list[str],
        typer.Option("--prompt", "-p", metavar="TEXT", help="Start of the text; repeat it for several conversations."),
    ],
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Common start of all conversations; it is computed once.")
    ] = "",
    as_numbers: Annotated[
        bool, typer.Option("--numbers", help="Prompts and answers are token numbers, e.g. 5,17,3.")
    ] = False,
    count: Count = 64,
    *,
    sampling: Sampling,
    adapter: Adapters = None,
    draft: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Program of a smaller model, whose guesses this model checks.")
    ] = None,
    kernels: Kernels = None,
    trust_code: TrustCode = False,
    when_full: Annotated[
        WhenFull, typer.Option(help="If the context is full: end, or forget the older half and continue.")
    ] = "stop",
) -> None:
    """Continue prompts, token by token. Needs no torch."""
    from delegate_llm.runtime.model import Model

    if draft and sampling.temperature:
        raise InputError("guesses are checked against the most likely token", remedy="remove --temperature")
    if draft and when_full == "slide":
        raise InputError("guesses end when the context is full", remedy="remove --when-full or --draft")
    samplers = [sampling.make_sampler() for _ in prompt]
    model = Model(path, trust_code, kernels)
    request = _Request(model, count, tuple(sampling.stop or ()), as_numbers)
    prompts = [request.tokens(text) for text in prompt]
    first = request.tokens(prefix) if prefix else []
    adapters = _adapters(model, adapter or [], len(prompts))
    if first and len({*adapters}) > 1:
        raise InputError("a prefix is computed with one adapter", remedy="pass --adapter once")
    if draft:
        small = Model(draft, trust_code, kernels)
        _speculate(request, small, [[*first, *tokens] for tokens in prompts], adapters)
    elif not first and when_full == "stop" and len(prompts) > 1 and model.about["conversations"] > 1:
        _run_batch(request, prompts, samplers, adapters)
    else:
        _run_each(request, first, prompts, samplers, adapters, when_full)


@app.command("chat", cls=Command)
@expand_groups
def chat(
    path: Program,
    system: Annotated[str | None, typer.Option(help="System message: how the model answers.")] = None,
    count: Count = 256,
    *,
    sampling: Sampling,
    adapter: Annotated[Path | None, typer.Option(metavar="FOLDER", help="LoRA adapter in PEFT's format.")] = None,
    kernels: Kernels = None,
    trust_code: TrustCode = False,
) -> None:
    """Chat with a model: each line of stdin is a message. Needs no torch."""
    from delegate_llm.runtime.chat import Chat
    from delegate_llm.runtime.model import Model

    sampler = sampling.make_sampler()
    model = Model(path, trust_code, kernels)
    talk = Chat(model, sampler, system, sampling.stop or (), None if adapter is None else model.load_adapter(adapter))
    for message in _messages():
        for text in talk.send(message, count):
            output.print_line(text, end="", flush=True)
        output.print_line()


def _adapters(model: Model, folders: list[Path], count: int) -> list[Adapter | None]:
    """Return the adapter of each prompt: one for all of them, or one for each."""
    if len(folders) not in (0, 1, count):
        remedy = "pass --adapter once, or once for each prompt"
        raise InputError(f"{len(folders)} adapters for {count} prompts", remedy=remedy)
    if not folders:
        return [None] * count
    loaded = {folder: model.load_adapter(folder) for folder in folders}
    return [loaded[folders[i % len(folders)]] for i in range(count)]


def _messages() -> Iterator[str]:
    """Yield the lines of stdin that are not empty, up to its end."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")


def _run_each(
    request: _Request,
    prefix: list[int],
    prompts: list[list[int]],
    samplers: list[Sampler],
    adapters: list[Adapter | None],
    when_full: WhenFull,
) -> None:
    """Continue one prompt after the other, each in a conversation after the prefix."""
    start = None
    if prefix:
        conversation = request.model.conversation(adapter=adapters[0])
        conversation.feed(prefix)
        start = conversation.snapshot()
    for tokens, sampler, adapter in zip(prompts, samplers, adapters, strict=True):
        generated = request.model.conversation(start, adapter).generate(tokens, request.count, sampler, when_full)
        _print_stream(request.text(), generated)


def _run_batch(
    request: _Request, prompts: list[list[int]], samplers: list[Sampler], adapters: list[Adapter | None]
) -> None:
    """Continue all prompts in one batch, and print one answer after the other."""
    from delegate_llm.runtime.batch import Batch

    texts, answers = [request.text() for _ in prompts], [""] * len(prompts)
    for number, token in Batch(request.model).generate(prompts, request.count, samplers, adapters):
        answers[number] += texts[number].add(token)
        if all(text.stopped for text in texts):
            break
    for text, answer in zip(texts, answers, strict=True):
        output.print_line(answer + text.finish())


def _speculate(request: _Request, small: Model, prompts: list[list[int]], adapters: list[Adapter | None]) -> None:
    """Generate the most likely tokens, some of which a smaller model guesses."""
    from delegate_llm.runtime.speculative import Speculation

    for tokens, adapter in zip(prompts, adapters, strict=True):
        _print_stream(request.text(), Speculation(request.model, small, adapter).generate(tokens, request.count))


def _print_stream(text: Text, tokens: Iterable[int]) -> None:
    """Print the text of each token as it comes."""
    for part in text.read(tokens):
        output.print_line(part, end="", flush=True)
    output.print_line()
