"""Generate tokens with a program that `export.py` made. Needs neither torch nor the model.

Every prompt is a conversation of its own: a context, with a cache of its own. They share weights and partitions, and
are answered at the same time.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import delegate
from delegate.runtime.context import Context


def generate(context: Context, prompt: list[int], count: int) -> list[int]:
    """The `count` most likely tokens, one after the other."""
    logits = context.method("prefill")(np.array([prompt]), np.arange(len(prompt)))
    tokens = [int(logits.argmax())]
    for position in range(len(prompt), len(prompt) + count - 1):
        logits = context.method("decode")(np.array([tokens[-1:]]), np.array([position]))
        tokens.append(int(logits.argmax()))
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="the file that export.py wrote")
    parser.add_argument("prompts", nargs="+", help="token numbers, e.g. 5,17,3,42,8")
    parser.add_argument("--count", type=int, default=64, help="tokens to generate")
    options = parser.parse_args()
    prompts = [[int(token) for token in text.split(",")] for text in options.prompts]
    with delegate.load(options.path) as program, ThreadPoolExecutor() as pool:
        contexts = [program.context() for _ in prompts]
        for tokens in pool.map(generate, contexts, prompts, [options.count] * len(prompts)):
            print(*tokens)


if __name__ == "__main__":
    main()
