"""Suppression of LiteRT's line on stderr about its first XNNPACK delegate, which no option disables."""

from __future__ import annotations

import base64
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

_ONE_AT_A_TIME = Lock()  # otherwise stderr would be restored in the wrong order
_LINE = b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n"
_MODEL = zlib.decompress(  # y = -x for one number, as `tflite.Model` writes it
    base64.b85decode(
        "c-oU-U|<Mw^D$;%;A0SB5Mbb8-~fuS0C@~R9s`365I+H8W*}w+Vu&mVLiivxJaC;XKoTNm1H=wM?1H3@fq@Gw4^qbkHH!x-55o*t"
        "_)Ji<Kz82y|NlQo3Z@q%S7L~)UJUFO2B`TEzz!6J7>%OO0M#ytUw9a}!Ac>1v4-fg1^}Js3hM"
    )
)


def create_first_delegate(make: Callable[[bytes], object]) -> None:
    """Let LiteRT create its first XNNPACK delegate, for a small model, and remove its line from stderr.

    Other output to stderr in the meantime, from any thread, is passed on.

    Args:
        make: creates the delegate for the bytes of a model.
    """
    with _ONE_AT_A_TIME, _stderr_without(_LINE):
        make(_MODEL)


@contextmanager
def _stderr_without(line: bytes) -> Iterator[None]:
    try:
        stderr = os.dup(2)
    except OSError:  # there is none
        yield
        return
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            os.write(2, captured.read().replace(line, b""))
