"""Conversations with the program of a language model. Needs no torch."""
