"""The steps of a traced program."""

from collections.abc import Iterator

import jax
from jax.extend import core


def equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """Every step of a program, and of the programs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)
