"""Run a saved digits program over images, without torch: python run.py FILE.dlg IMAGES.npy RESULT.json

Writes the predicted classes and the median latency of one image.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import delegate

REPEAT, SECONDS = 500, 3.0  # whichever ends first


def main(program_file: str, images_file: str, result_file: str) -> None:
    images = np.load(images_file)
    with delegate.load(program_file, trust_code=True) as program:  # the demo has just made it
        classes = [int(program(image[None]).argmax()) for image in images]
        times = []
        end = time.perf_counter() + SECONDS
        for i in range(REPEAT):
            start = time.perf_counter()
            if start > end:
                break
            program(images[i % len(images)][None])
            times.append(time.perf_counter() - start)
    if "torch" in sys.modules:
        sys.exit("torch was imported: a saved program must run without it")
    Path(result_file).write_text(json.dumps({"classes": classes, "latency": statistics.median(times)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
