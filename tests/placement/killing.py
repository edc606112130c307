"""A program whose process is killed during a measurement with another program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from delegate.placement.runtime.costs import Record
from delegate.placement.runtime.elimination import fixed_rounds, measure_rounds
from delegate.placement.runtime.trials import ProgramRunner, Trial
from delegate.program.model import Program


def killed_midway(factory: Any, program: Program, kill: Callable[[Any], None]) -> Record:
    """Return the record of the program that is killed after two rounds, and check the four rounds of the other one."""
    runners: list[ProgramRunner] = []

    class Watching:
        def start(self, trial: Trial) -> ProgramRunner:
            runners.append(factory.start(trial))
            return runners[-1]

    def go_on(records: Mapping[str, Record]) -> Any:
        if len(records["a"].rounds) == 2:
            kill(runners[0])
        return fixed_rounds(4)(records)

    records = measure_rounds([Trial(n, program, "forward") for n in "ab"], Watching(), go_on, lambda: True)
    assert len(records["a"].rounds) == 2
    assert (len(records["b"].rounds), records["b"].failure) == (4, "")
    return records["a"]
