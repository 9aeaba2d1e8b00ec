"""How long the sequences in a replica's slots are while it decodes: the spread that a plan assumes."""

import math
from enum import StrEnum
from statistics import NormalDist, fmean

_MEDIAN_SHARE = 1 / 8
_SIGMA = 1.0


class Spread(StrEnum):
    """How live lengths are spread over the slots of a replica.

    Attributes:
        UNIFORM: evenly between empty and full.
        LONG_TAIL: log-normal, sigma 1, its median at 1/8 of the room, cut off at the room: most conversations are
            short, one in ten takes 45 % of the room or more, one in fifty all of it.
        FULL: all of the room, in every slot: the most that there can be.
    """

    UNIFORM = "uniform"
    LONG_TAIL = "long_tail"
    FULL = "full"


def live_lengths(spread: Spread, slots: int, room: int) -> list[int]:
    """Live positions of each slot, in rising order: the spread's quantiles at the middles of `slots` equal parts."""
    middles = [(slot + 0.5) / slots for slot in range(slots)]
    if spread is Spread.UNIFORM:
        return [max(1, int(part * room)) for part in middles]
    if spread is Spread.FULL:
        return [max(1, room - 1)] * slots
    normal = NormalDist()
    return [
        max(1, min(room - 1, int(_MEDIAN_SHARE * room * math.exp(_SIGMA * normal.inv_cdf(part))))) for part in middles
    ]


def mean_live_length(spread: Spread, slots: int, room: int) -> float:
    """Mean of `live_lengths`."""
    return fmean(live_lengths(spread, slots, room))


def pages_in_use(lengths: list[int], page_size: int) -> int:
    """Pages that hold these sequences, the position that each is about to add included."""
    return sum(length // page_size + 1 for length in lengths)
