"""Failure signs from traces, and the two proposers that work from a catalogue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_search.archive import Archive, Candidate, TraceRecord
from harness_search.proposers.base import EmptySlot, Proposal
from harness_search.proposers.edits import Edit
from harness_search.proposers.offline import OfflineProposer
from harness_search.proposers.random_edit import RandomEditProposer
from harness_search.proposers.signs import Sign, shares, signs
from harness_search.records import Decision, IterationRecord, ProposalRecord, SessionState, SlotRecord, SlotState
from harness_search.scoring import EpisodeResult, Score, ScoreTag
from harness_search.workspace import Workspace, materialise

PROMPT = {"source": "prompt", "text": "<|im_start|>assistant\n<think>\n"}
CALL = '<tool_call>\n<function=search>\n<parameter=query_list>\n["{0}"]\n</parameter>\n</function>\n</tool_call>'
PASSAGE = "Doc 1 (Title: Bergama)\nBergama is a town in Izmir Province, Turkey, near the Aegean coast, with many ruins."


def reply(turn: int, text: str, finish: str = "stop") -> dict[str, Any]:
    return {"source": "sampled", "text": text, "turn": turn, "finish": finish}


def result(text: str, source: str = "tool") -> dict[str, Any]:
    body = f'<tool_response>\n{{"result": "{text}"}}\n</tool_response>'.replace("\nBergama", "\\nBergama")
    return {"source": source, "text": f"<|im_start|>user\n{body}<|im_end|>\n"}


def trace(*segments: dict[str, Any], answer: str | None = "Italy", end: str = "answered") -> dict[str, Any]:
    return {"end": end, "answer": answer, "returned": [0, 1], "chats": [[PROMPT, *segments]]}


SEARCH = reply(0, f"look\n</think>\n\n{CALL.format('Bergama')}<|im_end|>")
ANSWER = reply(1, "so\n</think>\n\n<answer>Italy</answer><|im_end|>")
USUAL = {Sign.SINGLE_CALL, Sign.SINGLE_DOCUMENT, Sign.UNUSED_RESULT}


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (trace(SEARCH, result(PASSAGE), ANSWER), USUAL),
        (trace(SEARCH, result(PASSAGE), ANSWER, answer="turkey"), USUAL - {Sign.UNUSED_RESULT} | {Sign.GROUNDED_WRONG}),
        (trace(SEARCH, result(PASSAGE, "harness"), ANSWER), USUAL),
        (trace(SEARCH, result(f"{PASSAGE} Doc 2 (Title: X)"), ANSWER), USUAL - {Sign.SINGLE_DOCUMENT}),
        (trace(SEARCH, result("No results found."), ANSWER), USUAL | {Sign.THIN_RESULT}),
        (trace(ANSWER), {Sign.NO_TOOL_CALL}),
        (trace(ANSWER, answer=None), {Sign.NO_TOOL_CALL, Sign.NO_ANSWER}),
        (trace(ANSWER, answer="it is a country that I would call by name"), {Sign.NO_TOOL_CALL, Sign.LONG_ANSWER}),
        (
            trace(SEARCH, end="turn_budget", answer=None),
            {Sign.NO_TOOL_CALL, Sign.NO_ANSWER, Sign.UNRUN_CALL, Sign.TURN_BUDGET},
        ),
        (
            trace(reply(0, "so I think that", "length"), end="token_budget", answer=None),
            {Sign.NO_TOOL_CALL, Sign.NO_ANSWER, Sign.UNFINISHED_THINKING, Sign.CUT_REPLY, Sign.TOKEN_BUDGET},
        ),
        (
            trace(reply(0, "a\n</think>\n<tool_call>\n<function=search>"), answer=None),
            {Sign.NO_TOOL_CALL, Sign.NO_ANSWER, Sign.MALFORMED_CALL},
        ),
        (
            trace(SEARCH, result(PASSAGE), {**SEARCH, "turn": 1}, result(PASSAGE), {**ANSWER, "turn": 2}),
            {Sign.REPEATED_CALL, Sign.SINGLE_DOCUMENT, Sign.UNUSED_RESULT},
        ),
        (
            trace(reply(0, "</think>" + CALL.format('a", "b')), result(PASSAGE), ANSWER),
            USUAL | {Sign.SEVERAL_QUERIES},
        ),
        (
            # Thinking that the harness closed inside the turn is closed.
            trace(reply(0, "so", "length"), {"source": "harness", "text": "</think>", "turn": 0}, reply(0, " Italy")),
            {Sign.NO_TOOL_CALL},
        ),
        (
            {"end": "harness_error", "answer": None, "chats": []},
            {Sign.HARNESS_ERROR, Sign.NO_ANSWER, Sign.NO_TOOL_CALL},
        ),
    ],
)
def test_signs_say_what_a_trace_shows(one: dict[str, Any], wanted: set[Sign]) -> None:
    assert signs(one) == wanted


SEGMENT = st.fixed_dictionaries(
    {"source": st.sampled_from(["prompt", "tool", "harness", "sampled"]), "text": st.text() | st.just("[" * 9_000)},
    optional={"turn": st.integers(0, 3), "finish": st.sampled_from(["stop", "length"])},
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(SEGMENT, max_size=4), max_size=3), st.none() | st.text())
def test_signs_never_fail_on_a_trace(chats: list[list[dict[str, Any]]], answer: str | None) -> None:
    assert signs({"end": "answered", "answer": answer, "chats": chats}) <= set(Sign)


def test_hostile_text_takes_linear_time() -> None:
    text = "<tool_call><parameter=a>[" * 40_000
    assert Sign.MALFORMED_CALL in signs(trace(reply(0, text)))
    text = CALL.format("a") * 5_000 + "<parameter=a>[" * 40_000
    assert Sign.REPEATED_CALL in signs(trace(reply(0, text)))
    assert Sign.UNRUN_CALL in signs(trace(reply(0, f"<tool_call>{'<parameter=a>[' * 40_000}</tool_call>")))


def test_shares_are_over_the_failed_traces() -> None:
    found = shares([trace(ANSWER), trace(ANSWER, answer=None)])
    assert found == {Sign.NO_TOOL_CALL: 1.0, Sign.NO_ANSWER: 0.5}
    assert shares([]) == {}


def edit(name: str, *addresses: str, axis: str | None = None, apply: Callable[[str], str | None] | None = None) -> Edit:
    def default(source: str) -> str | None:
        return None if f"{name} = 1" in source else source + f"{name} = 1\n"

    return Edit(name, axis or f"axis of {name}", f"{name} helps", "useful", addresses, apply or default)


CATALOGUE = [edit("A", Sign.NO_ANSWER), edit("B", Sign.TIMEOUT), edit("C"), edit("D", Sign.FORMAT, Sign.TURN_BUDGET)]
ALL_FAIL = [trace(ANSWER, answer=None)] * 4


class Grown:
    """An archive grown by hand."""

    def __init__(self, directory: Path, source: str = "H0 = 1\n", traces: Sequence[dict[str, Any]] = ALL_FAIL) -> None:
        self.archive = Archive(directory)
        self.add(source, traces=traces)

    def add(
        self,
        source: str,
        *,
        parent: str | None = None,
        edits: tuple[str, ...] = (),
        traces: Sequence[dict[str, Any]] = ALL_FAIL,
        incumbent: bool = True,
    ) -> Candidate:
        iteration = len(self.archive.iterations)
        rows = tuple(EpisodeResult(str(index), 0, 0.0, "answered", 1, 1) for index in range(len(traces)))
        records = [TraceRecord(row.task_id, 0, one) for row, one in zip(rows, traces, strict=True)]
        proposal = ProposalRecord("offline", iteration, 0, parent, edits=edits)
        candidate = self.archive.add_scored(source, proposal, Score(ScoreTag("m", "t", "v", "s"), "h", rows), records)
        before = self.archive.iterations[-1].incumbent if iteration else None
        after = candidate.id if incumbent or before is None else before
        slot = SlotRecord(0, SlotState.SCORED, candidate.id, candidate.hash)
        self.archive.commit_iteration(
            IterationRecord(
                iteration,
                SessionState.COMPLETED,
                (slot,),
                "archive_max",
                before,
                after,
                0.0,
                4,
                0,
                4,
                {},
                Decision.GO_ON,
            )
        )
        return candidate

    def workspace(self) -> Workspace:
        return materialise(self.archive, slots=3, rollouts_left=None)


Maker = type[OfflineProposer] | type[RandomEditProposer]


def session(maker: Maker, catalogue: Sequence[Edit], workspace: Workspace, seed: int, slots: int = 3) -> list[Any]:
    async def collect() -> list[Proposal | EmptySlot]:
        stream = maker(catalogue).propose(workspace, iteration=1, slots=slots, seed=seed)
        return [item async for item in stream]

    return asyncio.run(collect())


both = pytest.mark.parametrize("maker", [OfflineProposer, RandomEditProposer])


@both
def test_a_session_fills_its_slots_on_different_axes_and_is_a_function_of_the_seed(
    tmp_path: Path, maker: Maker
) -> None:
    catalogue = [*CATALOGUE, *(edit(f"A{index}", Sign.NO_ANSWER, axis="axis of A") for index in range(9))]
    workspace = Grown(tmp_path).workspace()
    sessions = [session(maker, catalogue, workspace, seed) for seed in range(20)]
    for items in sessions:
        assert [item.slot for item in items] == [0, 1, 2]
        assert len({item.axis for item in items}) == 3
        assert all(item.parent == "000" and item.source == f"H0 = 1\n{item.edits[0]} = 1\n" for item in items)
    assert sessions == [session(maker, catalogue, workspace, seed) for seed in range(20)]
    assert len({str(items) for items in sessions}) > 5


def first_edits(maker: Maker, workspace: Workspace, catalogue: Sequence[Edit] = CATALOGUE) -> Counter[str]:
    return Counter(session(maker, catalogue, workspace, seed, slots=1)[0].edits[0] for seed in range(200))


def test_offline_prefers_what_the_failures_show_and_rules_nothing_out(tmp_path: Path) -> None:
    drawn = first_edits(OfflineProposer, Grown(tmp_path).workspace())
    assert drawn["A"] > 150
    assert all(drawn[name] > 0 for name in "BCD")


def test_offline_weighs_by_how_often_a_sign_is_seen(tmp_path: Path) -> None:
    some = [trace(ANSWER, answer=None, end="timeout"), *ALL_FAIL[:3]]
    drawn = first_edits(OfflineProposer, Grown(tmp_path, traces=some).workspace())
    assert drawn["A"] > 2 * drawn["B"] > 2 * drawn["D"]


def test_random_edit_looks_at_no_trace(tmp_path: Path) -> None:
    drawn = first_edits(RandomEditProposer, Grown(tmp_path).workspace())
    assert all(30 < drawn[name] < 70 for name in "ABCD")


@both
def test_no_proposer_reads_the_authors_expectation(tmp_path: Path, maker: Maker) -> None:
    workspace = Grown(tmp_path).workspace()
    harmful = [replace(one, kind="harmful") for one in CATALOGUE]
    for seed in range(20):
        assert session(maker, CATALOGUE, workspace, seed) == session(maker, harmful, workspace, seed)


@both
def test_edits_compose_onto_the_incumbent_and_sometimes_onto_others(tmp_path: Path, maker: Maker) -> None:
    grown = Grown(tmp_path)
    grown.add("H0 = 1\nA = 1\n", parent="000", edits=("A",))
    workspace = grown.workspace()
    items = [session(maker, CATALOGUE, workspace, seed, slots=1)[0] for seed in range(150)]
    parents = Counter(item.parent for item in items)
    assert parents["001"] > 100
    assert parents["000"] > 10
    assert all(item.source.startswith(workspace.candidates[item.parent].source) for item in items)


@both
def test_an_edit_is_not_tried_twice_on_one_parent_and_on_another_when_none_is_untried(
    tmp_path: Path, maker: Maker
) -> None:
    grown = Grown(tmp_path)
    grown.add("H0 = 1\nA = 1\n", parent="000", edits=("A",))
    grown.add("H0 = 1\nB = 1\n", parent="000", edits=("B",), incumbent=False)
    workspace = grown.workspace()
    items = [session(maker, CATALOGUE[:2], workspace, seed, slots=1)[0] for seed in range(200)]
    tried = {(item.parent, item.edits[0]) for item in items if isinstance(item, Proposal)}
    assert not tried & {("000", "A"), ("000", "B"), ("001", "A")}
    assert ("001", "B") in tried
    untried = {session(maker, CATALOGUE, workspace, seed, slots=1)[0].edits[0] for seed in range(50)}
    assert untried == {"C", "D"}
    known = {one.source for one in workspace.candidates.values()}
    assert not known & {item.source for item in items}


@both
def test_a_result_that_is_archived_already_is_not_proposed(tmp_path: Path, maker: Maker) -> None:
    grown = Grown(tmp_path)
    grown.add("H0 = 1\nA = 1  # written by somebody else\n", parent="000", incumbent=False)
    items = [session(maker, CATALOGUE[:2], grown.workspace(), seed, slots=1)[0] for seed in range(50)]
    assert ("000", "A") not in {(item.parent, item.edits[0]) for item in items}


@both
def test_where_no_edit_applies_the_slot_is_spent(tmp_path: Path, maker: Maker) -> None:
    never = [edit("A", apply=lambda source: None), edit("B", apply=lambda source: source + "# nothing\n")]
    items = session(maker, [*never, edit("C")], Grown(tmp_path).workspace(), 0)
    assert [type(item) for item in items] == [Proposal, EmptySlot, EmptySlot]
    assert "no edit" in items[1].reason


def test_a_catalogue_with_unknown_signs_or_doubled_names_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'A' is listed twice; .*'X' addresses unknown sign 'no_anser'.*no_answer"):
        OfflineProposer([edit("A"), edit("A"), edit("X", "no_anser")])
