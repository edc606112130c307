"""Limits of a program file. Saving and loading reject a larger one before they spend time or memory on it.

docs/file-format.md lists them with their reasons.
"""

from delegate.errors import ProgramError

MAX_DEPTH = 64  # nesting of expressions, of lists in arguments, of blocks, and of trees
MAX_EXPR_NODES = 4096  # nodes of one expression, counted as often as they occur
MAX_ALL_EXPR_NODES = 1 << 19  # nodes of all expressions of a file, counted so
MAX_SYMBOLS = 4096  # of a method
MAX_RANK = 64  # dimensions of a tensor, as NumPy has it
MAX_TENSOR_BYTES = 1 << 62  # of a tensor, with every size 0 counted as 1: sums of a few stay within 64 bits
MAX_NAME = 1 << 10  # bytes of a name, in UTF-8
MAX_TEXT = 1 << 16  # bytes of a source line, and of a text among arguments
MAX_SPECS = 1 << 22  # bytes of the compile specs of all delegates, as JSON
MAX_SPEC_PARTS = 1 << 18  # commas and brackets in them


def check_name(text: str | bytes, most: int = MAX_NAME) -> None:
    """Raise ProgramError for a text of more than `most` bytes of UTF-8."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > most:
        shown = data[:40].decode(errors="replace")
        raise ProgramError(f"a name or text of {len(data)} bytes is longer than {most}", where=f"{shown!r}...")
