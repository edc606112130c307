"""The process that runs one saved program without torch: python -m delegate_demo.measuring FILE IMAGES RESULT

It writes the class of each image, and the median latency of one image in seconds, as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import delegate

_CALLS, _SECONDS = 500, 1.0  # of the timed calls, whichever ends first


def main(program_file: str, images_file: str, result_file: str) -> None:
    """Run the program on each image, then time calls."""
    images = np.load(images_file)[:, None]  # each image is a batch of one
    with delegate.load(program_file, trust_code=True) as program:  # the demo has just written it
        classes = [int(np.asarray(program(image)).argmax()) for image in images]
        seconds, end = [], time.perf_counter() + _SECONDS
        for i in range(_CALLS):
            start = time.perf_counter()
            if start > end:
                break
            program(images[i % len(images)])
            seconds.append(time.perf_counter() - start)
    if "torch" in sys.modules:
        sys.exit("torch was imported: a saved program must run without it")
    Path(result_file).write_text(json.dumps({"classes": classes, "latency": statistics.median(seconds)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
