import pytest

from whale_jax.domains.searchqa.question_rows import parse_row
from whale_jax.domains.task import ParsedTask, RowError

LAYOUTS = {
    "prepared": ({"id": "test_0", "golden_answers": ["Paris", "paris ", "Paris"]}, ["Paris", "paris"], "test_0"),
    "answers": ({"answers": "Paris"}, ["Paris"], None),
    "nq-open": ({"answer": ["Paris", "City of Light"]}, ["Paris", "City of Light"], None),
    "triviaqa": ({"answer": {"value": "Paris", "aliases": ["Lutetia", "Paris"]}}, ["Paris", "Lutetia"], None),
    "triviaqa-without-aliases": ({"answer": {"value": "Paris", "aliases": None}}, ["Paris"], None),
    "hotpotqa": ({"_id": "5a7a", "answer": "Paris", "supporting_facts": []}, ["Paris"], "5a7a"),
    "musique": ({"id": "2hop__1", "answer": "Paris", "answer_aliases": ["Lutetia"]}, ["Paris", "Lutetia"], "2hop__1"),
    "popqa": ({"id": 42, "possible_answers": '["Paris", "Paname"]'}, ["Paris", "Paname"], "42"),
    "popqa-list": ({"possible_answers": ["Paris"]}, ["Paris"], None),
    "verifier": ({"reward_model": {"style": "rule", "ground_truth": {"target": ["Paris"]}}}, ["Paris"], None),
    "verifier-plain": ({"reward_model": {"ground_truth": "Paris"}}, ["Paris"], None),
    "golden-before-others": ({"golden_answers": ["Paris"], "answer": "Rome"}, ["Paris"], None),
}


@pytest.mark.parametrize(("row", "answers", "row_id"), LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(row, answers, row_id):
    assert parse_row({"question": " Q? ", **row}) == ParsedTask({"question": "Q?"}, {"answers": answers}, row_id)


def test_the_sets_name_is_kept_for_reports_and_out_of_the_inputs():
    task = parse_row({"question": "Q?", "answer": "x", "data_source": "nq"})
    assert (task.inputs, task.reference) == ({"question": "Q?"}, {"answers": ["x"], "set": "nq"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "is missing"),
        ({"golden_answers": None, "answer": None}, "is missing"),
        ({"golden_answers": [" "]}, "`golden_answers` holds no answer"),
        ({"answer": [1]}, "`answer` must be a text or a list of texts"),
        ({"answer": {"aliases": ["x"]}}, "`answer` must be a text"),
        ({"answer": {"value": None}}, "`answer` must be a text"),
        ({"answer": "x", "answer_aliases": 3}, "`answer_aliases` must be"),
        ({"possible_answers": "[x"}, "`possible_answers` is no JSON list"),
        ({"reward_model": "rule"}, "`reward_model` must be"),
        ({"question": "", "answer": "x"}, "`question` must be a text"),
        ({"question": "q" * 8_001, "answer": "x"}, "8001 characters"),
    ],
)
def test_what_cannot_be_used(row, message):
    with pytest.raises(RowError, match=message):
        parse_row({"question": "Q?", **row})
