"""What programs give, compared with torch: a plan that is fast and wrong is no plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from delegate.accuracy.figures import Differences
from delegate.accuracy.reference import EagerMethods, copies, tensors
from delegate.accuracy.samples import Sample
from delegate.compiled import to_array, to_tensor
from delegate.edge.program import EdgeProgram
from delegate.errors import AccuracyError
from delegate.placement.judging import Examined, compared_inputs, examined, farthest, results
from delegate.placement.trials import Seat
from delegate.program.expr import Expr
from delegate.program.model import Program, Ref

MOST_SAMPLES = 8  # that are compared


class Examination:
    """Compares programs of one method with torch.

    Args:
        ep: the reference: the method itself, or the float program that it was quantized from.
        edge: the same in edge dialect.
        samples: calls of it.
        bound: the least SQNR in dB; None: that of the program's own precision.
        is_random: whether it draws random numbers, so that nothing can be compared.
    """

    def __init__(
        self, ep: ExportedProgram, edge: EdgeProgram, samples: Sequence[Sample], bound: float | None, *, is_random: bool
    ) -> None:
        self._ep, self._edge, self.bound, self.is_random = ep, edge, bound, is_random
        self.calls = self.leaves(samples)
        self._found: dict[str, float] = {}
        self._expected: list[list[torch.Tensor]] | None = None

    @staticmethod
    def leaves(samples: Sequence[Sample]) -> list[list[Any]]:
        """The flat arguments of the calls that are compared."""
        return [pytree.tree_flatten((s.args, dict(s.kwargs)))[0] for s in samples[:MOST_SAMPLES]]

    def __call__(self, seats: Mapping[str, Seat], programs: Mapping[str, Program]) -> Examined:
        """Look at what these programs give."""
        if self.is_random:
            return Examined({}, {})
        return examined(seats, lambda name, seat: self._sqnr_db(seat, programs[name]), self.bound, self._found)

    def sqnr_db(self, name: str) -> float | None:
        """How near a program's results were, where that was looked at."""
        return self._found.get(name)

    def expected(self, program: Program) -> list[list[torch.Tensor]]:
        """What torch gives for the calls: results, then the inputs that are written to, then the states by name.

        Each call begins with the states as they are at the start.

        Args:
            program: of the method, by any plan; it knows which inputs are written to.

        Raises:
            AccuracyError: torch cannot run the reference, or it has other outputs or states than the program.
        """
        if self._expected is None:
            self._expected = self._run(compared_inputs(program, self._edge.name))
            self._require_as_many(program, len(self._expected[0]))
        return self._expected

    def _require_as_many(self, program: Program, expected: int) -> None:
        """Raise AccuracyError if the reference has another number of results than a program."""
        name = self._edge.name
        outputs = next(m for m in program.methods if m.name == name).outputs
        count = sum(isinstance(output, Ref | Expr | bool | int | float) for output in outputs)
        count += len(compared_inputs(program, name)) + len(program.states)
        if count != expected:
            what = f"the program gives {count} results, with written inputs and states, and its reference {expected}"
            remedy = "give the model that the program was made of, or leave accuracy out"
            raise AccuracyError(what, where=f"method {name}", remedy=remedy)

    def _run(self, written: Sequence[int]) -> list[list[torch.Tensor]]:
        name = self._edge.name
        eager = EagerMethods({name: self._ep}, {name: tuple(self._edge.states.values())})
        start = dict(eager.states)
        found = []
        for call in self.calls:
            eager.states = {state: value.clone() for state, value in start.items()}
            given = copies(call)
            made = eager.run(name, given)
            made += [given[number] for number in written]
            found.append(made + [eager.states[state] for state in sorted(eager.names(name))])
        return found

    def _sqnr_db(self, seat: Seat, program: Program) -> float:
        found = Differences()
        for call, expected in zip(self.calls, self.expected(program), strict=True):
            given = results(seat, program, self._edge.name, arrays_of(call))
            actual = tensors([to_tensor(*result) for result in given])
            found.add(actual, expected)
        return farthest(math.nan if number in found.empty else o.sqnr_db for number, o in enumerate(found.outputs))


def arrays_of(call: Sequence[Any]) -> list[Any]:
    """The leaves of arguments as the runtime takes them."""
    return [to_array(leaf, f"input {number}") for number, leaf in enumerate(call)]
