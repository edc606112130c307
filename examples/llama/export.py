"""Compile a decoder with a static cache into one file of two methods, prefill and decode.

    python examples/llama/export.py llama.dlg --backend xnnpack
    python examples/llama/generate.py llama.dlg 5,17,3,42,8

The weights are random; put your own into the model with `load_state_dict`.
"""

from __future__ import annotations

import argparse
import sys

import torch
from model import Llama

import delegate
from delegate.errors import DelegateError

PROMPT = 5  # tokens that prefill takes


def main() -> None:
    """Compile and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="the file to write")
    parser.add_argument("--backend", action="append", default=[], help="e.g. xnnpack; default: only portable kernels")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Llama().eval()
    methods = {
        "prefill": torch.export.export(model, (torch.zeros(1, PROMPT, dtype=torch.int64), torch.arange(PROMPT))),
        "decode": torch.export.export(model, (torch.zeros(1, 1, dtype=torch.int64), torch.tensor([PROMPT]))),
    }
    program = delegate.to_backend(methods, options.backend)
    print(program)
    program.save(options.path)


if __name__ == "__main__":
    try:
        main()
    except DelegateError as error:
        sys.exit(f"error: {error}")
