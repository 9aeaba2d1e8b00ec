"""What a run improves and returns: a policy and a harness."""

import dataclasses
import hashlib


@dataclasses.dataclass(frozen=True)
class Pair:
    """Weights and harness at one moment of a run.

    Attributes:
      step: training steps behind the weights, which is also the name of their checkpoint; 0: the initial weights.
      weights: SHA-256 over the fp32 master weights.
      harness: the harness's source.
    """

    step: int
    weights: str
    harness: str

    @property
    def harness_hash(self) -> str:
        """SHA-256 of the harness's source."""
        return hashlib.sha256(self.harness.encode()).hexdigest()
