"""Language models without torch: exported once, run with NumPy and the backends' libraries.

    python -m examples.llm export FOLDER model.dlg
    python -m examples.llm run model.dlg --prompt "Once upon a time"

A MODEL is a folder of safetensors with its tokenizer, or a configuration in JSON, whose weights are random.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # attention has threads of its own; before NumPy is imported

import argparse
import sys
from pathlib import Path

from delegate.errors import DelegateError, InputError
from examples.llm.batch import Batch
from examples.llm.model import Model
from examples.llm.sampling import Sampler
from examples.llm.speculative import Speculation
from examples.llm.text import Text, numbers


def main() -> int:
    """Exit codes: 0 done, 1 the request failed, 2 wrong usage."""
    given = _parser().parse_args()
    try:
        given.command(given)
    except DelegateError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _export(given: argparse.Namespace) -> None:
    try:
        from examples.llm.export import Options, export
        from examples.llm.source import read
    except ModuleNotFoundError as error:
        remedy = "pip install 'delegate[aot,xnnpack,quantization]' transformers safetensors tokenizers"
        raise DelegateError("the export needs torch and transformers", where=str(error), remedy=remedy) from error
    names = ("context", "chunk", "conversations", "weights", "prefill_weights", "cache", "guesses")
    options = Options(**{name: getattr(given, name) for name in names}, backends=given.backend or ("xnnpack",))
    options.check()
    source = read(given.model, without_tokenizer=given.no_tokenizer)
    program = export(source, given.path, options)
    print(program.report.summary)


def _run(given: argparse.Namespace) -> None:
    if given.count < 1:
        raise InputError(f"{given.count} tokens are requested", remedy="use --count 1 or more")
    model = Model(given.path, trust_code=given.trust_code)
    prompts = [(p, _tokens(model, p, given.numbers)) for p in given.prompt]
    prefix = _tokens(model, given.prefix, given.numbers) if given.prefix else []
    samplers = [Sampler(given.temperature, given.top_k, given.top_p, given.seed) for _ in prompts]
    if given.draft:
        _speculate(given, model, [[*prefix, *tokens] for _, tokens in prompts])
        return
    alike = not prefix and given.when_full == "stop"  # as all conversations of a batch go on
    if alike and 1 < len(prompts) <= model.about["conversations"]:
        _together(given, model, [tokens for _, tokens in prompts], samplers)
        return
    kept = None
    if prefix:
        first = model.conversation()
        first.feed(prefix)
        kept = first.keep()
    for (_, tokens), sampler in zip(prompts, samplers, strict=True):
        text = _text(given, model)
        for token in model.conversation(kept).generate(tokens, given.count, sampler, given.when_full):
            print(text.add(token), end="", flush=True)
            if text.stopped:
                break
        print(text.finish())


def _together(given: argparse.Namespace, model: Model, prompts: list[list[int]], samplers: list[Sampler]) -> None:
    """All prompts in one batch; what they give is printed one after the other."""
    texts, said = [_text(given, model) for _ in prompts], [""] * len(prompts)
    for number, token in Batch(model).generate(prompts, given.count, samplers):
        said[number] += texts[number].add(token)
        if all(text.stopped for text in texts):
            break
    for text, words in zip(texts, said, strict=True):
        print(words + text.finish())


def _speculate(given: argparse.Namespace, model: Model, prompts: list[list[int]]) -> None:
    """The likeliest tokens, of which a smaller model guesses some."""
    if given.temperature:
        raise InputError("guesses are checked against the most likely token", remedy="remove --temperature")
    if given.when_full == "slide":
        raise InputError("guesses end when the context is full", remedy="remove --when-full or --draft")
    small = Model(given.draft, trust_code=given.trust_code)
    for tokens in prompts:
        text = _text(given, model)
        for token in Speculation(model, small).generate(tokens, given.count):
            print(text.add(token), end="", flush=True)
            if text.stopped:
                break
        print(text.finish())


def _text(given: argparse.Namespace, model: Model) -> Text:
    return Text(None if given.numbers else model.tokenizer, given.stop)


def _tokens(model: Model, text: str, as_numbers: bool) -> list[int]:
    if not as_numbers:
        return model.tokens(text)
    try:
        return list(numbers(text))
    except ValueError as error:
        raise InputError("this is not a list of token numbers", where=text, remedy="write them as 5,17,3") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.llm", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    export = commands.add_parser("export", help="compile a model to one file")
    export.set_defaults(command=_export)
    export.add_argument(
        "model", type=Path, help="a folder of safetensors with its tokenizer, or a configuration in JSON"
    )
    export.add_argument("path", type=Path, help="the file to write")
    export.add_argument("--context", type=int, default=2048, help="maximum number of tokens in a conversation")
    export.add_argument("--chunk", type=int, default=64, help="maximum number of prompt tokens in one call")
    export.add_argument(
        "--conversations", type=int, default=1, help="number of conversations that are decoded in one call"
    )
    widths = ("float32", "int8", "int4")
    export.add_argument(
        "--weights", choices=widths, default="int4", help="type of the weights of linear layers; int4: in blocks of 32"
    )
    export.add_argument("--prefill-weights", choices=widths, help="type of the weights for prefill, if different")
    export.add_argument("--cache", choices=("float32", "float16", "int8"), default="float32")
    export.add_argument("--backend", action="append", help="a backend, in order of preference; default: xnnpack")
    export.add_argument(
        "--guesses", type=int, default=0, help="number of guesses of a draft model that are checked in one call"
    )
    export.add_argument(
        "--no-tokenizer", action="store_true", help="do not require a tokenizer; the program then reads token numbers"
    )
    run = commands.add_parser("run", help="continue a prompt; needs no torch")
    run.set_defaults(command=_run)
    run.add_argument("path", type=Path, help="a file that export wrote")
    run.add_argument(
        "--prompt",
        action="append",
        required=True,
        help="the start of the text; repeat the option for several conversations",
    )
    run.add_argument("--prefix", default="", help="the common start of all conversations; it is processed once")
    run.add_argument("--numbers", action="store_true", help="prompts and answers are token numbers, e.g. 5,17,3")
    run.add_argument("--count", type=int, default=64, help="maximum number of tokens to generate")
    run.add_argument("--temperature", type=float, default=0.0, help="0: always the most likely token")
    run.add_argument(
        "--top-k", type=int, default=0, help="sample from this many of the most likely tokens; 0: from all"
    )
    run.add_argument(
        "--top-p", type=float, default=1.0, help="sample from the most likely tokens with this total probability"
    )
    run.add_argument("--seed", type=int, help="seed of the sampling; the same seed gives the same tokens")
    run.add_argument("--stop", action="append", default=[], help="a word that ends the answer")
    run.add_argument("--draft", type=Path, help="a smaller model, whose guesses this model checks")
    run.add_argument("--trust-code", action="store_true", help="allow the file to contain machine code, and run it")
    run.add_argument(
        "--when-full", choices=("stop", "slide"), default="stop", help="what to do when the context is full"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
