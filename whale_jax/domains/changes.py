"""Changes of a harness source that are made later: what the edits of a catalogue apply. `source_edits` does the work.

A `Change` takes a source and returns the changed one, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable

from whale_jax.domains import source_edits

Change = Callable[[str], str | None]


def append(name: str, text: str) -> Change:
    """Appends `text` to the text constant `name`."""
    return lambda source: source_edits.append_text(source, name, text)


def start(function: str, block: str) -> Change:
    """Puts the statements of `block` at the start of a function."""
    return lambda source: source_edits.insert_at_start(source, function, block)


def end(function: str, block: str) -> Change:
    """Puts the statements of `block` before the `return` that ends a function."""
    return lambda source: source_edits.insert_before_return(source, function, block)


def body(function: str, block: str) -> Change:
    """Replaces the body of a function by the statements of `block`."""
    return lambda source: source_edits.set_body(source, function, block)


def replace(function: str, old: str, new: str) -> Change:
    """Replaces `old`, which must occur exactly once in a function."""
    return lambda source: source_edits.replace_in_function(source, function, old, new)


def raise_to(value: int, *names: str) -> Change:
    """Sets the whole-number constants that are below `value` to it; does not apply when none is."""
    return _move(value, names, lambda now: now < value)


def lower_to(value: int, *names: str) -> Change:
    """Sets the whole-number constants that are above `value` to it; does not apply when none is."""
    return _move(value, names, lambda now: now > value)


def with_import(module: str, change: Change) -> Change:
    """`change`, and `import module` where it applies."""

    def both(source: str) -> str | None:
        changed = change(source)
        return None if changed is None else source_edits.ensure_import(changed, module)

    return both


def _move(value: int, names: tuple[str, ...], moves: Callable[[int], bool]) -> Change:
    def change(source: str) -> str | None:
        changed = source
        for name in names:
            now = source_edits.constant(changed, name)
            if isinstance(now, int) and moves(now):
                changed = source_edits.set_constant(changed, name, value) or changed
        return None if changed == source else changed

    return change
