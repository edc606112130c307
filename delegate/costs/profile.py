"""The profile of a machine: the seconds that each backend, and the portable kernels, take for kinds of operators.

`delegate.costs.calibration` measures it. Plain data, without torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from delegate.common.field_checks import Amount, amount, build, fault, mapping, require_format, round_measurements, text
from delegate.common.files import read_text, write_text
from delegate.costs.quantities import FUNCTION, KINDS
from delegate.errors import PartitionError, did_you_mean

FORMAT = 1
_AGAIN = "measure it again: `delegate calibrate -o FILE`"
_FILE = "shipped.json"
SHIPPED = "shipped"  # the origin of rates of a common machine
_MOST = 1e3  # seconds of one operator, value or byte
UNKNOWN = "other"  # the place whose rates stand for a backend that has none


def _seconds(data: Mapping[str, Any], key: str) -> float:
    value = amount(data, key)
    if value > _MOST:
        raise ValueError(f"{key} should be seconds, and {value:g} s is too long")
    return value


Seconds = Annotated[float, _seconds]  # which `build` reads


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds of an operator, or of a partition's call: `call + unit * units + byte * bytes`.

    Args:
        call: seconds of each.
        unit: seconds per unit of work; see `delegate.costs.quantities`, or for a call, per value that goes in or out.
        byte: seconds per byte that is moved; for operators that work row by row, per row.
    """

    call: Seconds
    unit: Seconds = 0.0
    byte: Seconds = 0.0

    def seconds(self, units: float, nbytes: float) -> float:
        """Return the seconds for this much work."""
        return self.call + self.unit * units + self.byte * nbytes


@dataclass(frozen=True, slots=True)
class PlaceRates:
    """The rates of one backend, or of the portable kernels.

    Args:
        call: Seconds for calling a partition without its work, and for each value and byte that goes in or out.
        operators: kind -> the rate of one operator of a partition; see `delegate.costs.quantities`.
        versions: Library name -> the version that was measured.
        origin: "calibrated", or "shipped".
        compile: seconds that lowering takes for each node, roughly; not calibrated.
    """

    call: Rate
    operators: Mapping[str, Rate]
    versions: Mapping[str, str]
    origin: str = SHIPPED
    compile: Amount = 0.0


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """The rates of one machine's places.

    Args:
        machine: its description; see `delegate.cache.runtime.environment.machine`.
        places: name of a backend, or "portable" -> its rates.
    """

    machine: str
    places: Mapping[str, PlaceRates]

    def rates(self, place: str) -> PlaceRates:
        """Return the rates of a place; an unknown place has the rates of a common library."""
        return self.places.get(place) or self.places[UNKNOWN]

    def with_place(self, name: str, rates: PlaceRates) -> MachineProfile:
        """Return the profile with other rates of a place."""
        return replace(self, places={**self.places, name: rates})

    def to_json(self) -> str:
        """Return the profile as JSON, with numbers of four digits."""
        data = {"format": FORMAT, "machine": self.machine, "places": {n: asdict(p) for n, p in self.places.items()}}
        return json.dumps(round_measurements(data), indent=1) + "\n"

    @classmethod
    def from_json(cls, source: str, where: str = "") -> MachineProfile:
        """Return the profile in a text from `to_json`; raises PartitionError for another one.

        `where` is for the message.
        """
        try:
            data = mapping({"a profile": json.loads(source)}, "a profile")
            require_format(data, FORMAT)
            places = mapping(data, "places")
            return cls(text(data, "machine"), {name: place_of(name, mapping(places, name)) for name in places})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"the profile cannot be used, {fault(error)}"
            raise PartitionError(what, where=where, remedy=_AGAIN) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file; raises PartitionError if that fails."""
        write_text(path, self.to_json(), "the profile")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MachineProfile:
        """Read a file; raises PartitionError if it has no profile, and places that it lacks have the shipped rates."""
        own = cls.from_json(read_text(path, "the profile", _AGAIN), str(path))
        return replace(own, places={**read_shipped().places, **own.places})


@cache
def read_shipped() -> MachineProfile:
    """Return the profile that comes with the package: of a 2025 server with AVX-512 and two threads."""
    source = files(__package__).joinpath(_FILE)
    return MachineProfile.from_json(source.read_text("utf-8"), _FILE)


def place_of(name: str, data: Mapping[str, Any]) -> PlaceRates:
    """Return the rates of plain data; raises KeyError, TypeError or ValueError for impossible ones."""
    try:
        rates = build(PlaceRates, data)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the rates of {name}: {fault(error)}") from error
    for kind in rates.operators:
        if kind not in KINDS:
            raise ValueError(f"{name} has rates of {kind!r}, which is no kind of operator: {did_you_mean(kind, KINDS)}")
    if FUNCTION not in rates.operators:
        raise ValueError(f"{name} has no rate of {FUNCTION!r}, which stands for all other kinds")
    if not any(rate.seconds(1, 1) for rate in (rates.call, *rates.operators.values())):
        raise ValueError(f"{name} would take no time for anything")
    return rates
