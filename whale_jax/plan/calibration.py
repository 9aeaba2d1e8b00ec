"""How far real steps stay behind their roofline bounds: measured by `whale_jax.doctor`, read by `whale_jax.plan`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from whale_jax.plan.chips import CHIPS, Chip
from whale_jax.plan.programs import Step

_FORMAT = 1

ASSUMED = {Step.TRAIN: 2.0, Step.EXTEND: 2.0, Step.DECODE: 2.0}
"""Where nothing was measured: half of what the roofline allows."""


class CalibrationError(ValueError):
    """A calibration file that cannot be used."""


@dataclass(frozen=True)
class Calibration:
    """Seconds that a step takes over its roofline bound.

    Attributes:
        factors: by step.
        chip: on which they were measured, with the rates that the bounds were made of; None: they are assumed.
        source: where they come from, in words.
        measured: seconds and bounds behind the factors, for the reader.
    """

    factors: Mapping[Step, float]
    chip: Chip | None
    source: str
    measured: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def assumed(cls) -> "Calibration":
        """`ASSUMED`."""
        return cls(ASSUMED, None, "assumed, not measured")

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        """What `doctor --calibration_out` wrote.

        Raises:
            CalibrationError: it cannot be read, or is no calibration; the message names the file.
        """
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != _FORMAT:
                raise CalibrationError(f"--calibration={path}: is of format {record['format']}, not {_FORMAT}")
            factors = {Step(name): float(value) for name, value in record["factors"].items()}
            chip = Chip(**record["chip"])
        except OSError as error:
            raise CalibrationError(f"--calibration={path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, CalibrationError):
                raise
            raise CalibrationError(
                f"--calibration={path}: is not what `whale_jax.doctor --calibration_out` writes ({error!r})"
            ) from error
        wrong = [step.value for step in Step if not 0 < factors.get(step, 0) < float("inf")]
        if wrong:
            raise CalibrationError(f"--calibration={path}: no factor above 0 for {', '.join(wrong)}")
        return cls(factors, chip, str(path), record.get("measured", {}))

    def write(self, path: Path) -> None:
        """Writes the file that `read` reads. Raises OSError."""
        assert self.chip is not None, "what is assumed is not written"
        record = {
            "format": _FORMAT,
            "chip": asdict(self.chip),
            "factors": {step.value: factor for step, factor in self.factors.items()},
            "measured": dict(self.measured),
        }
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def for_chip(self, chip: Chip | None, topology: str) -> Chip | None:
        """The chip of a plan: a known one, or for devices that are not known the measured one.

        Raises:
            CalibrationError: it was measured on another chip.
        """
        if self.chip is None:
            return chip
        if chip is None and self.chip.name not in CHIPS:
            return self.chip
        if chip is None or chip.name != self.chip.name:
            raise CalibrationError(
                f"--calibration: was measured on {self.chip.name}, and --topology={topology} is another; run "
                "`whale_jax.doctor --calibration_out` there, or leave it out"
            )
        return chip
