"""The demo's promises: sizes, splits that share nothing, answers that are right and cannot be guessed."""

from collections import Counter

import pytest

from whale_jax.domains.math import problems
from whale_jax.domains.math.demo import demo_tasks, make_tasks
from whale_jax.domains.math.problems import FAMILIES, Family, Kind, generate
from whale_jax.domains.task import Split, check_disjoint


def test_sizes_and_splits():
    tasks = demo_tasks()
    counts = {split: len(tasks[split]) for split in Split}
    assert sum(counts.values()) >= 2_000
    assert counts[Split.WEIGHT] >= 900
    assert min(counts.values()) >= 300
    check_disjoint(tasks)
    assert len({task.id for split in Split for task in tasks[split]}) == sum(counts.values())
    for split in Split:
        assert Counter(task.reference["kind"] for task in tasks[split]).keys() == set(Kind)


def test_the_same_seed_gives_the_same_tasks_and_another_one_others():
    one, two, other = (make_tasks(per_kind=10, seed=seed) for seed in (3, 3, 4))
    assert one == two
    questions = [{task.inputs["question"] for split in Split for task in tasks[split]} for tasks in (one, other)]
    assert len(questions[0] & questions[1]) < len(questions[0]) / 4


def test_a_question_that_says_the_same_is_the_same_problem():
    """No held-out product is a training product with its factors exchanged."""
    for kind in (Kind.PRODUCT, Kind.DIGIT_SUM, Kind.MULTIPLE):
        assert all(list(one.parameters) == sorted(one.parameters) for one in generate(kind, 50, seed=0))


def test_no_constant_answer_is_worth_much():
    tasks = [task for split in Split for task in demo_tasks()[split]]
    (_, most), *_ = Counter(task.reference["answer"] for task in tasks).most_common(1)
    assert most / len(tasks) < 0.04
    for kind in Kind:
        answers = Counter(task.reference["answer"] for task in tasks if task.reference["kind"] == kind)
        assert answers.most_common(1)[0][1] / answers.total() < 0.2, kind


def test_answers_are_whole_numbers_and_questions_say_so_plainly():
    for split in Split:
        for task in demo_tasks()[split]:
            assert str(int(task.reference["answer"])) == task.reference["answer"]
            assert set(task.inputs) == {"question"}
            assert not set("{}") & set(task.inputs["question"])
            assert "--" not in task.inputs["question"].replace(" ", "")


KNOWN = {
    (Kind.PRODUCT, (12, 13)): 156,
    (Kind.POWER_MOD, (2, 10, 7)): 2,
    (Kind.SUM_MOD, (2, 10, 97)): 385 % 97,
    (Kind.DIVISIBLE, (100, 3, 5)): 47,
    (Kind.DIGIT, (100, 7)): 19,
    (Kind.DIGIT, (777, 7)): 211,
    (Kind.PRIMES, (10, 20)): 4,
    (Kind.PRIMES, (11, 13)): 0,
    (Kind.DIVISORS, (360,)): 24,
    (Kind.PAIRS, (2, 3, 12)): 1,
    (Kind.PAIRS, (2, 4, 7)): 0,
    (Kind.MULTIPLE, (4, 6)): 12,
    (Kind.SUM_AND_DIFFERENCE, (10, 4)): 21,
}


@pytest.mark.parametrize(("kind", "parameters"), KNOWN)
def test_both_ways_of_working_out_agree_with_hand(kind, parameters):
    family = FAMILIES[kind]
    assert family.solve(*parameters) == family.check(*parameters) == KNOWN[kind, parameters]


def test_a_problem_whose_two_answers_differ_stops_the_generation(monkeypatch):
    wrong = Family("What is {0}?", lambda random: (random.randint(1, 9),), lambda a: a, lambda a: a + 1)
    monkeypatch.setitem(problems.FAMILIES, Kind.PRODUCT, wrong)
    with pytest.raises(AssertionError, match=r"two ways of working it out give"):
        generate(Kind.PRODUCT, 1, seed=0)
