"""Qualcomm's chips: the numbers that QNN needs to compile for a chip, and the chip of this machine.

Sources of models and architectures: QNN SDK, "Supported Snapdragon devices"; Qualcomm's own table in ExecuTorch.
https://docs.qualcomm.com/bundle/publicresource/topics/80-63442-50/overview.html
https://github.com/pytorch/executorch/blob/main/backends/qualcomm/serialization/qc_schema.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_MACHINE = Path("/sys/devices/soc0/machine")  # where Qualcomm's kernels tell the chip


@dataclass(frozen=True, slots=True)
class Target:
    """A chip.

    Args:
        soc: its name; empty if only its numbers are known.
        htp_arch: architecture of its HTP, e.g. 73.
        soc_model: QNN's number of the chip.
    """

    soc: str
    htp_arch: int
    soc_model: int

    def __str__(self) -> str:
        return self.soc or f"htp_arch {self.htp_arch}, soc_model {self.soc_model}"


TARGETS: Mapping[str, Target] = {
    t.soc: t
    for t in (
        Target("SM8350", 68, 30),
        Target("SA8295", 68, 39),
        Target("SA8540", 68, 62),
        Target("QCM6490", 68, 93),
        Target("SM8450", 69, 36),
        Target("SM8475", 69, 42),
        Target("SXR2230P", 69, 53),
        Target("SM8550", 73, 43),
        Target("SA8255", 73, 52),
        Target("SSG2115P", 73, 46),
        Target("SSG2125P", 73, 58),
        Target("SXR1230P", 73, 45),
        Target("QCS9100", 73, 77),
        Target("SM8650", 75, 57),
        Target("SM8750", 79, 69),
        Target("SXR2330P", 79, 75),
        Target("SM8850", 81, 87),
        Target("SM8845", 81, 97),
        Target("SA8797", 81, 72),
        Target("SAR2230P", 81, 95),
        Target("SW6100", 81, 96),
    )
}
DEFAULT = TARGETS["SM8550"]


def require_consistent(htp_arch: int, soc_model: int) -> None:
    """Check the numbers of a chip: QNN compiles for `soc_model`, and ignores an `htp_arch` that contradicts it.

    Raises:
        ValueError: no known chip has this architecture, or the chip with this number has another one.
    """
    architectures = sorted({t.htp_arch for t in TARGETS.values()})
    if htp_arch not in architectures:
        raise ValueError(f"there is no htp_arch {htp_arch}: known are {', '.join(map(str, architectures))}")
    for target in TARGETS.values():
        if target.soc_model == soc_model and target.htp_arch != htp_arch:
            raise ValueError(
                f"soc_model {soc_model} is {target}, whose htp_arch is {target.htp_arch}, not {htp_arch}: "
                f"write soc: {target}"
            )


def local_target(machine: Path = _MACHINE) -> Target | None:
    """Return the chip of this machine; None if it has none of these, and the emulator can stand in for any chip."""
    try:
        return TARGETS.get(machine.read_text().strip().upper())
    except OSError:
        return None
