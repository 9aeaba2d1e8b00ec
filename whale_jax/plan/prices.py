"""What a chip costs, from a file: the one beside this module, or the user's own in the same form."""

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path


class PriceError(ValueError):
    """A price file that cannot be used."""


@dataclass(frozen=True)
class Prices:
    """Dollars per chip and hour.

    Attributes:
        by_chip: chip to kind of contract (`on_demand`, …) to price.
        source: where they were read.
        date: when they were written down.
        checked: whether somebody compared them with the source.
    """

    by_chip: dict[str, dict[str, float]]
    source: str
    date: str
    checked: bool

    @classmethod
    def read(cls, path: Path | None = None) -> "Prices":
        """The prices in a file; None: the package's.

        Raises:
            PriceError: it cannot be read or has another form.
        """
        try:
            text = (
                resources.files("whale_jax.plan").joinpath("prices.json").read_text("utf-8")
                if path is None
                else path.read_text(encoding="utf-8")
            )
            record = json.loads(text)
            table = {
                chip: {kind: float(price) for kind, price in kinds.items()}
                for chip, kinds in record["dollars_per_chip_hour"].items()
            }
            return cls(table, str(record["source"]), str(record["written_down"]), bool(record["checked"]))
        except OSError as error:
            raise PriceError(f"--prices={path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PriceError(f"--prices={path}: not in the form of whale_jax/plan/prices.json ({error!r})") from error

    def of(self, chip: str, kind: str) -> float | None:
        """None where the file has no such price."""
        return self.by_chip.get(chip, {}).get(kind)

    @property
    def described(self) -> str:
        """Where they come from, in one line."""
        return f"{self.source}, written down {self.date}{'' if self.checked else ', NOT CHECKED: look them up'}"
