import pytest

from whale_jax.domains.source_edits import (
    append_text,
    constant,
    ensure_import,
    insert_at_start,
    insert_before_return,
    replace_in_function,
    set_body,
    set_constant,
)

SOURCE = '''"""A file."""

GREETING = ("héllo " "there")  # é is two bytes
COUNT = 2


def f(x):
    """Doc."""
    y = x
    return y


async def bare():
    return 1
'''


def run(source, call):
    names = {}
    exec(source, names)
    return eval(call, names)


def test_constants_are_replaced_where_they_stand_and_comments_survive():
    changed = set_constant(SOURCE, "GREETING", 'say "hi"\n{x} ü')
    assert changed is not None
    assert "# é is two bytes" in changed
    assert run(changed, "GREETING") == 'say "hi"\n{x} ü'
    assert run(set_constant(SOURCE, "COUNT", 5), "COUNT") == 5
    assert constant(SOURCE, "COUNT") == 2


def test_append_text_happens_once():
    changed = append_text(SOURCE, "GREETING", " you")
    assert changed is not None
    assert run(changed, "GREETING") == "héllo there you"
    assert append_text(changed, "GREETING", " you") is None


def test_blocks_go_after_the_docstring_and_before_the_return():
    changed = insert_before_return(SOURCE, "f", "y = y + 1")
    changed = insert_at_start(changed or "", "f", "if x < 0:\n    return 'negative'")
    assert changed is not None
    assert run(changed, "f(-1), f(3), f.__doc__") == ("negative", 4, "Doc.")
    assert insert_at_start(changed, "f", "if x < 0:\n    return 'negative'") is None


def test_bodies_and_pieces_are_replaced():
    assert run(set_body(SOURCE, "f", "return x * 10"), "f(2), f.__doc__") == (20, "Doc.")
    assert run(replace_in_function(SOURCE, "f", "y = x", "y = -x"), "f(2)") == -2
    assert replace_in_function(SOURCE, "f", "y", "z") is None  # more than one place


def test_imports_are_added_once_after_the_docstring():
    changed = ensure_import(SOURCE, "json")
    assert changed is not None
    assert run(changed, "json.dumps(1), __doc__") == ("1", "A file.")
    assert ensure_import(changed, "json") == changed


@pytest.mark.parametrize(
    "result",
    [
        set_constant(SOURCE, "NONE", 1),
        set_constant(SOURCE, "COUNT", 2),
        append_text(SOURCE, "COUNT", "x"),
        insert_at_start(SOURCE, "g", "pass"),
        insert_before_return("def f():\n    pass\n", "f", "x = 1"),
        set_body(SOURCE, "f", "return ("),
        set_constant("def (", "COUNT", 1),
        set_body("\0", "f", "pass"),
    ],
)
def test_what_does_not_apply_gives_none(result):
    assert result is None
