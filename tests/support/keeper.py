"""A backend for tests that preserves every compound operator, and then refuses all of them."""

from __future__ import annotations

from collections.abc import Set
from typing import ClassVar

from torch.fx import Node

from delegate.backend import aot
from delegate.backend.aot import PreprocessResult, Region
from delegate.backend.decomposition import is_compound_operator
from delegate.backend.info import Availability, BackendInfo
from delegate.edge.operators import _overload, functional_operators
from delegate.runtime.backend import BackendRuntime
from delegate.verdict import Reason, Verdict, no


class Keeper(aot.Backend):
    name = "keeper"
    Options: ClassVar[type[aot.Options]] = aot.Options
    kept: ClassVar[Set[str] | None] = None

    @property
    def preserve_ops(self) -> Set[str]:
        if Keeper.kept is None:
            names = functional_operators()
            Keeper.kept = {n for n in names if (op := _overload(n)) is not None and is_compound_operator(op)}
        return Keeper.kept

    def check(self, node: Node) -> Verdict:
        return no(Reason.OPERATOR, "keeper refuses every node")

    def preprocess(self, region: Region) -> PreprocessResult:
        raise NotImplementedError


class Runtime(BackendRuntime):
    pass


INFO = BackendInfo(
    name="keeper",
    description="preserves compound operators and refuses them",
    aot="tests.support.keeper:Keeper",
    runtime="tests.support.keeper:Runtime",
    probe=lambda: Availability(ok=True),
    install="",
)
