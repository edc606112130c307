"""Recordings of spoken vowels, synthesized with the resonances of a human voice. Needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np

RATE = 8000  # samples a second
SYMBOLS = "_aeiou"  # class 0 is silence
FORMANTS = {"a": (750, 1200, 2500), "e": (480, 1950, 2550), "i": (290, 2300, 3000), "o": (480, 850, 2450),
            "u": (320, 700, 2300)}  # fmt: skip
Array = np.ndarray[Any, np.dtype[Any]]


def speak(text: str, random: np.random.Generator) -> tuple[Array, Array]:
    """Return a recording of the vowels in a text, with pauses and noise, and the class of each sample.

    Args:
        text: letters of "aeiou".
        random: draws the voice, the durations and the noise.
    """
    voice = random.uniform(95, 210)  # Hz
    parts, classes = [], []
    for letter in text:
        for symbol, seconds in (("_", random.uniform(0.04, 0.1)), (letter, random.uniform(0.15, 0.3))):
            count = int(seconds * RATE)
            sound = np.zeros(count) if symbol == "_" else _vowel(symbol, voice * random.uniform(0.9, 1.1), count)
            parts.append(sound * random.uniform(0.5, 1.0))
            classes.append(np.full(count, SYMBOLS.index(symbol)))
    parts.append(np.zeros(RATE // 10))
    classes.append(np.zeros(RATE // 10, int))
    wave = np.concatenate(parts)
    return (wave + random.normal(0, 0.01, len(wave))).astype(np.float32), np.concatenate(classes)


def _vowel(letter: str, pitch: float, count: int) -> Array:
    """Return harmonics of a pitch (Hz), whose loudness follows the resonances of a vowel."""
    time = np.arange(count) / RATE
    harmonics = np.arange(1, int(RATE / 2 / pitch)) * pitch
    resonance = sum(np.exp(-(((harmonics - f) / 110) ** 2)) / (i + 1) for i, f in enumerate(FORMANTS[letter]))
    wave = (np.sin(2 * np.pi * harmonics[:, None] * time) * (resonance + 0.02)[:, None]).sum(0)
    fade = np.minimum(1, np.minimum(np.arange(count), np.arange(count)[::-1]) / 100)
    return np.asarray(wave / np.abs(wave).max() * fade)


def transcribe(logits: Array) -> str:
    """Return the text of logits (frames, symbols): the best symbol of each frame, without repetitions and silence."""
    best = logits.argmax(1)
    changes = best[np.append(True, best[1:] != best[:-1])]
    return "".join(SYMBOLS[symbol] for symbol in changes if symbol)
