"""Files with names that an attacker would choose."""

from tests.support.hostile import paths

__all__ = ["paths"]
