"""Ways of doing wrong."""

import ctypes
import os
import time


def crash(*args, **kwargs):
    ctypes.string_at(0)


def hang(*args, **kwargs):
    print("waiting for a licence server")  # noqa: T201
    while True:
        time.sleep(60)


def leave(*args, **kwargs):
    os._exit(0)


def fail(*args, **kwargs):
    raise RuntimeError("bang\nin two lines")


def nonsense(*args, **kwargs):
    return {"nonsense": object()}
