"""Transcribe a recording with a program of `compile.py`. Needs no torch.

    python examples/speech/run.py vowels.dlg --speak aiuoe
    python examples/speech/run.py vowels.dlg --wave recording.wav

A WAV file has one channel of 16 bits at 8,000 samples a second.
"""

from __future__ import annotations

import argparse
import sys
import wave
from pathlib import Path

import numpy as np
from vowels import RATE, Array, speak, transcribe

import delegate
from delegate.errors import DelegateError


def read(path: Path) -> Array:
    """Return the samples of a WAV file, float32 in [-1, 1]."""
    try:
        with wave.open(str(path)) as file:
            kind = (file.getnchannels(), 8 * file.getsampwidth(), file.getframerate())
            samples = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        sys.exit(f"error: {path} is not a WAV file: {error}")
    if kind != (1, 16, RATE):
        sys.exit(
            f"error: {path} has {kind[0]} channels of {kind[1]} bits at {kind[2]} Hz: convert it to 1, 16 and {RATE}"
        )
    return (np.frombuffer(samples, "<i2") / 32768).astype(np.float32)


def main() -> None:
    """Print the text of the recording."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the file that compile.py wrote")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--speak", metavar="TEXT", help='synthesize a recording of letters of "aeiou"')
    source.add_argument("--wave", metavar="FILE", type=Path, help="a WAV file")
    options = parser.parse_args()
    if options.speak is not None and set(options.speak) - set("aeiou"):
        parser.error(f"--speak {options.speak}: it may have the letters a, e, i, o and u")
    samples = read(options.wave) if options.wave else speak(options.speak, np.random.default_rng())[0]
    with delegate.load(options.program) as program:
        print(transcribe(program(samples[None])[0]))


if __name__ == "__main__":
    try:
        main()
    except (DelegateError, OSError) as error:
        sys.exit(f"error: {error}")
