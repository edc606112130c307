"""Catalog: what the protocols require of a server's models, in this process or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from delegate_serve.runtime.model import ServedModel
from delegate_serve.runtime.openai import Language
from delegate_serve.runtime.pool import Pool


class Catalog(Protocol):
    """The models of a server; `Models` describes the methods."""

    pool: Pool

    @property
    def by_name(self) -> Mapping[str, ServedModel]:
        """The models."""

    @property
    def languages(self) -> Mapping[str, Language]:
        """The language models."""

    def language_names(self) -> Mapping[str, str]:
        """Return the names of language models with their adapters, and the names of their programs."""

    def find(self, name: str) -> ServedModel:
        """Return a model."""

    def is_available(self, name: str) -> bool:
        """Return True if requests can use a model."""

    def use(self, name: str) -> AbstractAsyncContextManager[ServedModel]:
        """Keep a model for a request."""

    def use_language(self, name: object) -> AbstractAsyncContextManager[Language]:
        """Keep a language model for a request."""

    async def load(self, name: str) -> None:
        """Load a program for a client."""

    async def unload(self, name: str) -> None:
        """Close a program for a client."""

    def index(self) -> list[dict[str, str]]:
        """Return the state of each model."""
