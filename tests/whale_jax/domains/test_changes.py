"""The changes that catalogues are written with."""

import pytest

from whale_jax.domains.changes import append, body, end, lower_to, raise_to, replace, start, with_import

SOURCE = '''"""A harness."""

PROMPT = "Hello."
TURNS = 2
CALLS = 5


def f(x):
    y = x
    return y
'''


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (append("PROMPT", " You."), '"Hello."', '"Hello. You."'),
        (start("f", "x = x + 1"), "    y = x\n", "    x = x + 1\n    y = x\n"),
        (end("f", "y = -y"), "    return y\n", "    y = -y\n    return y\n"),
        (body("f", "return 0"), "    y = x\n    return y\n", "    return 0\n"),
        (replace("f", "y = x", "y = 2 * x"), "y = x", "y = 2 * x"),
        (raise_to(4, "TURNS"), "TURNS = 2", "TURNS = 4"),
        (raise_to(4, "TURNS", "CALLS"), "TURNS = 2", "TURNS = 4"),
        (lower_to(3, "TURNS", "CALLS"), "CALLS = 5", "CALLS = 3"),
        (lower_to(0, "TURNS", "CALLS"), "TURNS = 2\nCALLS = 5", "TURNS = 0\nCALLS = 0"),
    ],
)
def test_only_what_is_named_changes(change, old, new):
    assert change(SOURCE) == SOURCE.replace(old, new)


def test_an_import_comes_with_its_change_or_not_at_all():
    changed = with_import("re", append("PROMPT", " You."))(SOURCE)
    assert changed is not None
    assert "\nimport re\n" in changed
    assert "Hello. You." in changed
    assert with_import("re", append("OTHER", "x"))(SOURCE) is None


@pytest.mark.parametrize(
    "change",
    [raise_to(2, "TURNS"), raise_to(1, "TURNS", "CALLS"), lower_to(5, "TURNS", "CALLS"), raise_to(9, "PROMPT"),
     lower_to(1, "OTHER"), start("g", "x = 1"), body("f", "return (")],
)  # fmt: skip
def test_what_does_not_apply_is_none(change):
    assert change(SOURCE) is None
