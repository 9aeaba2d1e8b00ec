"""The two verifiers, on section c of the case table and on what math-verify alone would get wrong."""

from collections.abc import Iterator

import pytest

from harness_search.sandbox.backends import SandboxUnavailable, detect
from harness_search.sandbox.code_server import CodeLimits
from whale_jax.domains.math.boxed import last_boxed
from whale_jax.domains.math.plain import clean, read_plain
from whale_jax.domains.math.symbolic import Comparison, SymbolicComparer
from whale_jax.domains.math.verifier import MAX_ANSWER_CHARS, paper_rule, symbolic_rule
from whale_jax.domains.verdict import Verdict


class NoComparer:
    """Plain answers never get as far as computer algebra."""

    def compare(self, reference: str, answer: str) -> Comparison:
        raise AssertionError(f"{reference!r} and {answer!r} are plain")


@pytest.fixture(scope="module")
def comparer() -> Iterator[SymbolicComparer]:
    try:
        detect("auto")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    comparer = SymbolicComparer(lambda: detect("auto"), limits=CodeLimits(cpu_seconds=3, output_bytes=4096))
    yield comparer
    comparer.close()


def box(answer: str) -> str:
    return rf"So it is \boxed{{{answer}}}"


PLAIN = [
    ("C069", r"\frac{1}{3}", box(r"\frac{1}{2}"), 0),
    ("C072", "5", r"Answer: \boxed{5}", 1),
    ("C074", "42", r"<answer>\boxed{42}</answer>", 1),
    ("C077 twice", "840", r"\boxed{840} and so \boxed{840}", 1),
    ("C077 leading zeros", "4", box("004"), 1),
    ("C084 unit", "28", box(r"28\%"), 1),
    ("C084 unit in both", r"28\%", box("28"), 1),
    ("C084 not a hundredth", r"28\%", box("0.28"), 0),
    ("C084 nor the other way", "0.28", box(r"28\%"), 0),
    ("C086 bold inside", "73", r"Final Answer: \boxed{**73**}", 1),
    ("C086 bold around", "73", r"Final Answer: **\boxed{73}**", 1),
    ("C094 degrees", "60", box(r"60^\circ"), 1),
    ("C099 the same time", "12:00", box("12:00"), 1),
    ("C101 fraction", r"\frac{1}{2}", box(r"\frac{2}{4}"), 1),
    ("C101 thousands", "1000", box("1,000"), 1),
    ("C101 unit", "5", box("5 cm"), 1),
    ("C102 far from the end", "12", box("12") + " " + "x" * 500, 1),
    ("C104 thinking", "63", r"<think>\boxed{63}</think> I do not know.", 0),
    ("two boxes, the last counts", "2", r"\boxed{2} or rather \boxed{3}", 0),
    ("a name before", "12", box("x = 12"), 1),
    ("a greek name", "12", box(r"\theta = 12"), 1),
    ("money", "12", box(r"\$12"), 1),
    ("a full stop", "12", box("12."), 1),
    ("delimiters", "12", box("$12$"), 1),
    ("a styled number", "12", box(r"\mathbf{12}"), 1),
    ("a unit as text", "12", box(r"12\text{ apples}"), 1),
    ("another unit", "5 m", box("5 km"), 0),
    ("a unit without a space", "5", box("5cm"), 1),
    ("a short fraction", r"\frac{1}{3}", box(r"\frac13"), 1),
    ("a mixed number", r"\frac{7}{3}", box(r"2\frac{1}{3}"), 1),
    ("a slash", r"\frac{7}{3}", box("7/3"), 1),
    ("a decimal", "0.5", box(r"\frac{1}{2}"), 1),
    ("a rounded decimal", r"\frac{1}{3}", box("0.333333"), 0),
    ("nearly", "1", box("0.9999999999"), 0),
    ("one off in many digits", "12345678901234567890", box("12345678901234567891"), 0),
    ("a negative", "-7", box("−7"), 1),
    ("the sign", "7", box("-7"), 0),
    ("spacing", "1000", box(r"1\,000"), 1),
    ("braces around a comma", "1000", box("1{,}000"), 1),
]


@pytest.mark.parametrize(("reference", "reply", "reward"), [row[1:] for row in PLAIN], ids=[row[0] for row in PLAIN])
def test_plain_answers_are_compared_exactly(reference: str, reply: str, reward: int) -> None:
    assert symbolic_rule(reply, reference, NoComparer()).reward == reward


SYMBOLIC = [
    ("C079", r"1+\frac{1}{\mathrm{e}}", r"1-\frac{1}{\mathrm{e}}", 0),
    ("C079 right", r"1-\frac{1}{\mathrm{e}}", r"\frac{e-1}{e}", 1),
    ("C081", "3x+4y+14=0", "3*x-1*y+13=0", 0),
    ("C082 a known false negative", r"\frac{1}{\sqrt{n}}", r"\sqrt{1/n}", 0),
    ("C087", "x^2/16+y^2/12=1", "x^2/4+y^2/3=1", 0),
    ("C089", r"(-\infty,\infty)", r"(-\infty,0)\cup(0,\infty)", 0),
    ("C091", r"\{1,2\}", "(1,2)", 0),
    ("C091 swapped", "(1,2)", r"\{1,2\}", 0),
    ("C092", "(1,2)", "(2,1)", 0),
    ("C094 radians", r"\frac{\pi}{3}", r"60^\circ", 0),
    ("C096", "3.14", "3,14", 0),
    ("C097", "x>3", r"(3,\infty)", 1),
    ("C097 swapped", r"(3,\infty)", "x>3", 0),
    ("C099 times", "1:00", "12:00", 0),
    ("C099 ratios", "1:2", "2:4", 1),
    ("digits with a space", "3", "1 2", 0),
    ("another base", "12", "12_8", 0),
    ("a magnitude", "5", r"5\text{ million}", 0),
    ("two candidates", "3", r"3\text{ or }4", 0),
    ("a list for a number", "12", "12, 13", 0),
    ("an equation for its last part", "4", "3=4", 0),
    ("a sum left undone", "4", "2+2", 0),
    ("its equation", "4", "2+2=4", 0),
    ("a product left undone", "56088", r"123 \cdot 456", 0),
    ("a power left undone", "1024", "2^{10}", 0),
    ("a factorial left undone", "5040", "7!", 0),
    ("a root left undone", "37", r"\sqrt{1369}", 0),
    ("a series left undone", "5050", r"\sum_{i=1}^{100} i", 0),
    ("a remainder left undone", "2", r"12 \bmod 5", 0),
    ("a logarithm left undone", "3", r"\log_2 8", 0),
    ("an integral for a formula", r"\frac{x^2}{2}", r"\int x dx", 0),
    ("anagrams", "no", "on", 0),
    ("a variable for a unit", "5", "5m", 0),
    ("a product", "5", "5x", 0),
    ("words", r"\text{Monday}", "Monday", 1),
    ("other words", r"\text{listen}", r"\text{silent}", 0),
    ("a choice", "A", r"\text{(A)}", 1),
    ("another choice", "A", "B", 0),
    ("nearly", r"\sqrt{2}", r"\sqrt{2}+10^{-20}", 0),
    ("rounded", r"\pi", "3.141593", 0),
    ("no solutions", "x^2=-1", "y^2=-1", 0),
    ("the same equation", "x+y=1", "2x+2y=2", 1),
    ("an unordered pair", "1,2", "2,1", 1),
    ("an ordered one for it", "1,2", "(2,1)", 0),
    ("other end points", "[1,2]", "(1,2)", 0),
    ("the set of a relation", r"1\le x\le 2", "[1,2]", 1),
    ("radicals", r"2\sqrt{3}", r"\sqrt{12}", 1),
    ("expanded", "(x+1)^2", "x^2+2x+1", 1),
    ("another variable", "x^2", "y^2", 0),
    ("a reference not simplified, a known false negative", r"\frac{2x}{2}", "x", 0),
    ("a variable given a name", "x", "y = x", 1),
    ("a variable for a number", "0", "i", 0),
    ("several claims", "12", "x = y = 12", 0),
    ("a formula with its name", "x^2", "f(x) = x^2", 1),
    ("two values with their names", "x=1, y=2", "x=2, y=1", 0),
    ("undefined", "0", "1/0", 0),
    ("two in delimiters", "42", "1$ and $42", 0),
    ("two in other delimiters", "42", r"1\) and \(42", 0),
    ("only its end can be read", "42", r"\foo{&&}=42", 0),
    ("two lines", "x^2+1", "x^2\n+1", 1),
    ("words that are no mathematics", r"\text{no solution, ever}", r"\text{No solution, ever}", 1),
    ("unreadable", r"\sqrt{2}", r"\sqrt{2}\dots", 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("reference", "answer", "reward"), [row[1:] for row in SYMBOLIC], ids=[r[0] for r in SYMBOLIC])
def test_other_answers_are_compared_symbolically(
    comparer: SymbolicComparer, reference: str, answer: str, reward: int
) -> None:
    verdict = symbolic_rule(box(answer), reference, comparer)
    assert verdict.reward == reward, verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    ["9^{9^{9^{9}}}", "(" * 400 + "x" + ")" * 400, r"\frac{" * 150 + "1" + "}{2}" * 150],
    ids=["C076 a power tower", "nested brackets", "nested fractions"],
)
def test_an_answer_that_cannot_be_worked_out_ends_its_own_comparison(comparer: SymbolicComparer, answer: str) -> None:
    verdict = symbolic_rule(box(answer), r"\sqrt{2}", comparer)
    assert (verdict.reward, verdict.answer) == (0, answer)
    assert symbolic_rule(box(r"\frac{2}{\sqrt{2}}"), r"\sqrt{2}", comparer).reward == 1  # the next one is well


@pytest.mark.slow
def test_a_reference_that_cannot_be_read_gives_no_reward(comparer: SymbolicComparer) -> None:
    verdict = symbolic_rule(box("12"), r"\begin{nothing", comparer)
    assert verdict == Verdict(None, "12", "the reference cannot be read")


def test_a_very_long_answer_is_none() -> None:
    """Case C076: a formula of 100 kB is not compared at all."""
    verdict = symbolic_rule(box("1+" * 50_000 + "1"), r"\sqrt{2}", NoComparer())
    assert (verdict.reward, len(verdict.answer or "")) == (0, MAX_ANSWER_CHARS)


@pytest.mark.parametrize(
    "reply", ["I counted 42 of them.", "**42**", r"\boxed{42", r"\boxed{1} and \boxed{42", "", r"\box{42}"], ids=repr
)
def test_without_a_box_there_is_no_answer(reply: str) -> None:
    """Case C071: nothing is searched for in the text. Case C086 too: bold alone is no box (DESIGN section 12)."""
    assert symbolic_rule(reply, "42", NoComparer()) == Verdict(0, None, "no box with an answer")


def test_what_is_missing_is_told_apart() -> None:
    assert symbolic_rule(None, "42", NoComparer()) == Verdict(0, None, "no reply to read")
    assert symbolic_rule(r"\boxed{ }", "42", NoComparer()) == Verdict(0, "", "empty box")
    assert paper_rule(None, "42") == Verdict(0, None, "no reply to read")


@pytest.mark.parametrize(
    ("reply", "reference", "reward"),
    [
        (box("42"), "42", 1),
        (box("042"), "42", 0),
        (box(" 42"), "42", 0),
        (box(r"\frac{2}{4}"), r"\frac{1}{2}", 0),
        (box("42") + "x" * 80, "42", 1),
        (box("42") + "x" * 100, "42", 0),
        ("x" * 500 + box("42"), "42", 1),
        (r"\boxed{" + "1" * 100 + "}", "1" * 100, 0),
        (r"\boxed{42} \boxed{7}", "42", 0),
    ],
)
def test_the_paper_compares_strings_near_the_end(reply: str, reference: str, reward: int) -> None:
    assert paper_rule(reply, reference).reward == reward


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{a", None),
        (r"\boxed{a\}", None),
        (r"\boxed{}", ""),
        (r"\boxed{1}</think>2", None),
        ("\\boxed{" * 20_000, None),
        ("\\boxed{\\", None),
    ],
)
def test_boxes(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", r"\frac{1}{0}", "1 2", "3,14", "1,00", "--5", "1e5", "5 pi", "9" * 501]
)
def test_what_is_no_plain_number(text: str) -> None:
    assert read_plain(clean(text)) is None
