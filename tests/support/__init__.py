"""Helpers that the tests of several folders share; a helper of one folder is in that folder."""
