"""The demo problems: small sums whose answers are whole numbers, each worked out twice, in two different ways.

A problem is a kind and its parameters. `solve` works the answer out as a textbook would, `check` by brute force; a
problem on which they differ is a fault of this file and stops the generation. Where the order of parameters does not
matter they are sorted, so that 47 * 86 and 86 * 47 are one problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

Parameters = tuple[int, ...]


class Kind(StrEnum):
    """What is asked."""

    PRODUCT = "product"
    EXPRESSION = "expression"
    LINEAR = "linear"
    LINEAR_BOTH = "linear_both"
    SUM_AND_DIFFERENCE = "sum_and_difference"
    POWER_MOD = "power_mod"
    SUM_MOD = "sum_mod"
    DIVISIBLE = "divisible"
    DIGIT = "digit"
    PRIMES = "primes"
    DIVISORS = "divisors"
    MULTIPLE = "multiple"
    SHOPPING = "shopping"
    DIGIT_SUM = "digit_sum"
    PAIRS = "pairs"


@dataclass(frozen=True)
class Family:
    """How problems of one kind are made.

    Attributes:
        text: the question, with one placeholder per parameter in order.
        draw: parameters at random.
        solve: the answer.
        check: the answer once more, in another way.
    """

    text: str
    draw: Callable[[Random], Parameters]
    solve: Callable[..., int]
    check: Callable[..., int]


@dataclass(frozen=True)
class Problem:
    """A question with its answer."""

    kind: Kind
    parameters: Parameters
    question: str
    answer: int

    @property
    def id(self) -> str:
        """Unique, and speaking."""
        return f"{self.kind}-{'-'.join(map(str, self.parameters))}"


def generate(kind: Kind, count: int, seed: int) -> list[Problem]:
    """`count` distinct problems of one kind; the same for the same seed, and the first ones for a smaller count."""
    family, random = FAMILIES[kind], Random(f"math-{kind}-{seed}")
    found: dict[Parameters, Problem] = {}
    while len(found) < count:
        parameters = family.draw(random)
        if parameters not in found:
            found[parameters] = _problem(kind, family, parameters)
    return list(found.values())


def _problem(kind: Kind, family: Family, parameters: Parameters) -> Problem:
    answer, again = family.solve(*parameters), family.check(*parameters)
    if answer != again:
        raise AssertionError(f"{kind}{parameters}: two ways of working it out give {answer} and {again}")
    return Problem(kind, parameters, family.text.format(*parameters), answer)


def _draw_product(random: Random) -> Parameters:
    return tuple(sorted((random.randint(12, 99), random.randint(12, 999))))


def _draw_expression(random: Random) -> Parameters:
    return random.randint(12, 99), random.randint(12, 99), random.randint(3, 39), random.randint(3, 39)


def _draw_linear(random: Random) -> Parameters:
    slope, solution, shift = random.randint(3, 29), random.randint(-40, 99), random.randint(2, 99)
    return slope, shift, slope * solution + shift


def _draw_linear_both(random: Random) -> Parameters:
    slope, other = random.sample(range(2, 30), 2)
    slope, other = max(slope, other), min(slope, other)
    solution = random.randint(5, 99)
    shift = random.randint(2, min(99, (slope - other) * solution - 1))
    return slope, shift, other, (slope - other) * solution - shift


def _draw_sum_and_difference(random: Random) -> Parameters:
    small, difference = random.randint(2, 60), random.randint(1, 60)
    return 2 * small + difference, difference


def _draw_power_mod(random: Random) -> Parameters:
    return random.randint(2, 40), random.randint(5, 60), random.randint(7, 97)


def _draw_sum_mod(random: Random) -> Parameters:
    return random.randint(1, 3), random.randint(10, 90), random.randint(7, 97)


def _draw_divisible(random: Random) -> Parameters:
    one, other = sorted(random.sample(range(3, 20), 2))
    return random.randint(100, 900), one, other


def _draw_digit(random: Random) -> Parameters:
    return random.randint(100, 2000), random.randint(1, 9)


def _draw_primes(random: Random) -> Parameters:
    low = random.randint(10, 400)
    return low, low + random.randint(20, 300)


def _draw_divisors(random: Random) -> Parameters:
    return (math.prod(random.choices((2, 2, 3, 5, 7, 11, 13), k=random.randint(3, 5))) * random.randint(1, 30),)


def _draw_multiple(random: Random) -> Parameters:
    factor = random.randint(2, 12)
    return tuple(sorted((factor * random.randint(2, 30), factor * random.randint(2, 30))))


def _draw_shopping(random: Random) -> Parameters:
    return random.randint(2, 30), random.randint(15, 99), random.randint(2, 30), random.randint(105, 399)


def _draw_pairs(random: Random) -> Parameters:
    one, other = sorted((random.randint(2, 12), random.randint(2, 12)))
    return one, other, one * random.randint(2, 30) + other * random.randint(2, 30)


def _linear_both(slope: int, shift: int, other: int, constant: int) -> int:
    return (constant + shift) // (slope - other)


def _sum_and_difference(total: int, difference: int) -> int:
    return (total + difference) // 2 * ((total - difference) // 2)


def _power_sum(power: int, last: int) -> int:
    """The sum of k^power for k up to `last`, by the closed forms of Faulhaber."""
    triangle = last * (last + 1) // 2
    return {1: triangle, 2: triangle * (2 * last + 1) // 3, 3: triangle * triangle}[power]


def _count_with_digit(last: int, digit: int) -> int:
    """How many of 1 … `last` contain a digit other than 0: all of them less those written with the nine others."""
    without, text = 0, str(last + 1)
    for index, character in enumerate(text):
        smaller = int(character) - (digit < int(character))
        without += smaller * 9 ** (len(text) - index - 1)
        if int(character) == digit:
            break
    return last + 1 - without


def _primes_between(low: int, high: int) -> int:
    """A sieve."""
    sieve = bytearray([1]) * high
    sieve[0:2] = b"\0\0"
    for number in range(2, math.isqrt(high) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, high, number)))
    return sum(sieve[low + 1 :])


def _divisor_count(number: int) -> int:
    """By the exponents of its prime factors."""
    count, factor = 1, 2
    while factor * factor <= number:
        exponent = 0
        while number % factor == 0:
            number, exponent = number // factor, exponent + 1
        count, factor = count * (exponent + 1), factor + 1
    return count * (2 if number > 1 else 1)


def _pairs(one: int, other: int, total: int) -> int:
    """One solution by search, the rest by the step of the general solution."""
    divisor = math.gcd(one, other)
    if total % divisor:
        return 0
    step = other // divisor
    first = next(x for x in range(1, step + 1) if (total - one * x) % other == 0)
    last = (total - other) // one
    return max(0, (last - first) // step + 1) if last >= first else 0


FAMILIES: dict[Kind, Family] = {
    Kind.PRODUCT: Family(
        "What is {0} * {1}?", _draw_product, lambda a, b: a * b, lambda a, b: sum(a for _ in range(b))
    ),
    Kind.EXPRESSION: Family(
        "What is {0} * {1} - {2} * {3}?",
        _draw_expression,
        lambda a, b, c, d: a * b - c * d,
        lambda a, b, c, d: sum([a] * b) - sum([c] * d),
    ),
    Kind.LINEAR: Family(
        "Solve {0}x + {1} = {2} for x.",
        _draw_linear,
        lambda a, b, c: (c - b) // a,
        lambda a, b, c: next(x for x in range(-500, 500) if a * x + b == c),
    ),
    Kind.LINEAR_BOTH: Family(
        "If {0}x - {1} = {2}x + {3}, what is x?",
        _draw_linear_both,
        _linear_both,
        lambda a, b, c, d: next(x for x in range(500) if a * x - b == c * x + d),
    ),
    Kind.SUM_AND_DIFFERENCE: Family(
        "Two numbers have the sum {0} and the difference {1}. What is their product?",
        _draw_sum_and_difference,
        _sum_and_difference,
        lambda s, d: next(x * (s - x) for x in range(s + 1) if x - (s - x) == d),
    ),
    Kind.POWER_MOD: Family(
        "What is the remainder when {0}^{1} is divided by {2}?",
        _draw_power_mod,
        pow,
        lambda a, n, m: math.prod([a] * n) % m,
    ),
    Kind.SUM_MOD: Family(
        "What is the sum of k^{0} for k from 1 to {1}, modulo {2}?",
        _draw_sum_mod,
        lambda p, n, m: _power_sum(p, n) % m,
        lambda p, n, m: sum(k**p for k in range(1, n + 1)) % m,
    ),
    Kind.DIVISIBLE: Family(
        "How many whole numbers from 1 to {0} are divisible by {1} or {2}?",
        _draw_divisible,
        lambda n, a, b: n // a + n // b - n // math.lcm(a, b),
        lambda n, a, b: sum(k % a == 0 or k % b == 0 for k in range(1, n + 1)),
    ),
    Kind.DIGIT: Family(
        "How many whole numbers from 1 to {0} contain the digit {1}?",
        _draw_digit,
        _count_with_digit,
        lambda n, d: sum(str(d) in str(k) for k in range(1, n + 1)),
    ),
    Kind.PRIMES: Family(
        "How many primes are greater than {0} and less than {1}?",
        _draw_primes,
        _primes_between,
        lambda a, b: sum(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(a + 1, b)),
    ),
    Kind.DIVISORS: Family(
        "How many positive divisors does {0} have?",
        _draw_divisors,
        _divisor_count,
        lambda n: sum(n % d == 0 for d in range(1, n + 1)),
    ),
    Kind.MULTIPLE: Family(
        "What is the least common multiple of {0} and {1}?",
        _draw_multiple,
        math.lcm,
        lambda a, b: next(k for k in range(b, a * b + 1, b) if k % a == 0),
    ),
    Kind.SHOPPING: Family(
        "Anna buys {0} pens at {1} cents each and {2} pads at {3} cents each. How many cents does she pay?",
        _draw_shopping,
        lambda a, b, c, d: a * b + c * d,
        lambda a, b, c, d: sum([b] * a + [d] * c),
    ),
    Kind.DIGIT_SUM: Family(
        "What is the sum of the digits of {0} * {1}?",
        _draw_product,
        lambda a, b: sum(map(int, str(a * b))),
        lambda a, b: sum(a * b // 10**place % 10 for place in range(8)),
    ),
    Kind.PAIRS: Family(
        "How many pairs (x, y) of positive whole numbers satisfy {0}x + {1}y = {2}?",
        _draw_pairs,
        _pairs,
        lambda a, b, n: sum((n - a * x) > 0 and (n - a * x) % b == 0 for x in range(1, n)),
    ),
}
