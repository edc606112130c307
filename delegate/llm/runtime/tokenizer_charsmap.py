"""The check of a charsmap: a normalization of SentencePiece, as a search tree and the texts that its leaves name.

The tree is a double array of Darts-clone, https://github.com/s-yata/darts-clone: a unit for each node, whose children
are in a block of 256 units. Who follows it reads at the places that the units name.
"""

from __future__ import annotations

import base64
import binascii

import numpy as np

_BLOCK = 256  # units; each block is allocated as a whole
_AT_ONCE = 4096  # nodes


def check_charsmap(text: str, place: str) -> str:
    """Return a charsmap in base64 as its decoder expects it; raise ValueError if it names a place outside of itself.

    Args:
        text: the charsmap in base64: bytes of the tree (32 bits), the tree, the texts in UTF-8, each ended by a zero.
        place: its place in the file, for the message.
    """
    damaged = ValueError(f"{place} is damaged")
    try:
        data = base64.b64decode(text, validate=True)
        size = int.from_bytes(data[:4], "little")
        texts = data[4 + size :]
        texts.decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise damaged from error
    if len(data) < 4 + size or not size or size % (4 * _BLOCK):
        raise damaged
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    # The first byte of each character of the texts, and their end.
    starts = np.append((np.frombuffer(texts, np.uint8) & 0xC0) != 0x80, True)
    offsets, labels = (units >> 10) << ((units & 0x200) >> 6), units & 0x800000FF
    seen, nodes = np.zeros(len(units), bool), np.zeros(1, np.int64)
    while nodes.size:
        nodes, rest = nodes[:_AT_ONCE], nodes[_AT_ONCE:]
        seen[nodes] = True
        bases = nodes ^ offsets[nodes]
        if (bases >= len(units)).any():
            raise damaged
        leaves = units[bases[(units[nodes] & 0x100) != 0]] & 0x7FFFFFFF
        if (leaves >= len(starts)).any() or not starts[leaves].all():
            raise damaged
        letters = np.arange(1, _BLOCK)
        children = bases[:, None] ^ letters
        children = children[labels[children] == letters]
        nodes = np.concatenate([np.unique(children[~seen[children]]), rest])
    return base64.b64encode(data).decode()
