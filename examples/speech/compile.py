"""Train a small speech recogniser on synthesized vowels, and compile it for recordings of any length.

python examples/speech/compile.py -o vowels.dlg --backend xnnpack
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.export import Dim
from vowels import RATE, SYMBOLS, speak, transcribe

import delegate
from delegate.errors import DelegateError

WINDOW, STEP, BANDS = 256, 128, 32  # samples, samples, mel bands
MOST_SECONDS = 10


class Recogniser(nn.Module):
    """wave (batch, samples) -> logits (batch, frames, symbols); the spectrogram is a part of the model."""

    def __init__(self) -> None:
        super().__init__()
        angles = 2 * torch.pi * torch.arange(WINDOW) * torch.arange(WINDOW // 2 + 1)[:, None] / WINDOW
        waves = torch.cat([angles.cos(), angles.sin()]) * torch.hann_window(WINDOW)
        self.register_buffer("waves", waves[:, None])
        self.register_buffer("bands", mel_bands())
        self.layers = nn.Sequential(
            nn.Conv1d(BANDS, 48, 5, padding=2), nn.ReLU(), nn.Conv1d(48, 48, 5, padding=2), nn.ReLU(),
            nn.Conv1d(48, len(SYMBOLS), 1),
        )  # fmt: skip

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        real, imaginary = nn.functional.conv1d(wave[:, None], self.waves, stride=STEP).chunk(2, dim=1)
        energy = torch.matmul(self.bands, real * real + imaginary * imaginary)
        return self.layers(torch.log(energy + 1e-3)).transpose(1, 2)


def mel_bands() -> torch.Tensor:
    """Return the weights of each frequency in each mel band, (bands, frequencies)."""
    mel = torch.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    frequencies = torch.linspace(0, RATE / 2, WINDOW // 2 + 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


def train(model: Recogniser, steps: int, random: np.random.Generator) -> None:
    """Fit the layers to random texts, one in each step."""
    optimizer = torch.optim.Adam(model.layers.parameters(), lr=3e-3)
    for step in range(steps):
        wave, classes = speak("".join(random.choice(list("aeiou"), 8)), random)
        logits = model(torch.from_numpy(wave)[None])[0]
        targets = torch.from_numpy(classes)[WINDOW // 2 :: STEP][: len(logits)]
        loss = nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")


def main() -> None:
    """Train, compile, compare with torch, and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("vowels.dlg"), help="file to write")
    parser.add_argument("--steps", type=int, default=300, help="training steps; 0: random weights")
    parser.add_argument("--backend", action="append", help="backend; several in order of preference; default: all")
    options = parser.parse_args()
    if options.steps < 0:
        parser.error(f"--steps {options.steps}: it must be 0 or more")

    torch.manual_seed(0)
    random = np.random.default_rng(0)
    model = Recogniser()
    train(model, options.steps, random)
    model.eval()
    wave = torch.from_numpy(speak("aeiou", random)[0])[None]
    samples = Dim("samples", min=2 * WINDOW, max=MOST_SECONDS * RATE)
    with torch.no_grad():
        program = delegate.to_backend(
            torch.export.export(model, (wave,), dynamic_shapes=({1: samples},)), options.backend
        )
        print(program.report.summary)
        texts = ["".join(random.choice(list("aeiou"), random.integers(3, 12))) for _ in range(20)]
        waves = [torch.from_numpy(speak(text, random)[0])[None] for text in texts]
        results = [program(wave).numpy()[0] for wave in waves]
        error = max(np.abs(r - model(w).numpy()[0]).max() for r, w in zip(results, waves, strict=True))
    correct = sum(transcribe(result) == text for result, text in zip(results, texts, strict=True))
    print(f"{correct} of {len(texts)} new recordings are transcribed without an error")
    print(f"largest difference from torch: {error:.2g}")
    program.save(options.output)
    print(f"saved {options.output}")


if __name__ == "__main__":
    try:
        main()
    except DelegateError as error:
        sys.exit(f"error: {error}")
