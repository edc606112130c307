"""Tests of `delegate.llm`: the tokens of eager from small random models, sampling, text, and bad input."""
