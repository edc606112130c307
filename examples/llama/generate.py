"""Generate tokens with a program of `export.py`. Needs neither torch nor the model.

Every prompt has a context with a separate cache. All contexts share weights and partitions, and run at the same time.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import delegate
from delegate.errors import DelegateError
from delegate.runtime.context import Context


def generate(context: Context, prompt: list[int], count: int) -> list[int]:
    """Return the `count` most likely tokens after a prompt."""
    logits = context.method("prefill")(np.array([prompt]), np.arange(len(prompt)))
    tokens = [int(logits.argmax())]
    for position in range(len(prompt), len(prompt) + count - 1):
        logits = context.method("decode")(np.array([tokens[-1:]]), np.array([position]))
        tokens.append(int(logits.argmax()))
    return tokens


def _tokens(text: str) -> list[int]:
    try:
        return [int(token) for token in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token numbers such as 5,17,3,42,8") from None


def main() -> None:
    """Print the tokens that follow each prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="the file that export.py wrote")
    parser.add_argument("prompts", nargs="+", type=_tokens, help="five token numbers each, e.g. 5,17,3,42,8")
    parser.add_argument("--count", type=int, default=64, help="tokens to generate")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count {options.count}: it must be 1 or more")
    with delegate.load(options.path) as program, ThreadPoolExecutor() as pool:
        contexts = [program.context() for _ in options.prompts]
        for tokens in pool.map(generate, contexts, options.prompts, [options.count] * len(contexts)):
            print(*tokens)


if __name__ == "__main__":
    try:
        main()
    except DelegateError as error:
        sys.exit(f"error: {error}")
