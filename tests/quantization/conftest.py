"""The fixture `silence`, for every test here."""

from tests.support.silence import silence

__all__ = ["silence"]
