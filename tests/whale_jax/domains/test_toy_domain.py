"""A domain outside the package: found by its path, run through the sandbox, and shown as it is in docs/domains.md."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from harness_search.contract import Budgets, EndReason, TaskView, check_source
from harness_search.proposers.edits import check_catalogue
from harness_search.validate import ScriptedEpisode, SearchSpace, Validator
from tests.whale_jax.domains.episodes import roll
from whale_jax.assemble import scripted_host
from whale_jax.config import ConfigError, RunConfig
from whale_jax.domains.registry import DOMAIN_NAMES, load_domain
from whale_jax.domains.task import Split, TaskError, check_disjoint
from whale_jax.main import main
from whale_jax.rollout.trace import Source
from whale_jax.settings import DOMAINS

NAME = "tests.toy_domain.domain:load"
FOLDER = Path(__file__).parents[2] / "toy_domain"
PAGE = FOLDER.parents[1] / "docs" / "domains.md"
CALL = (
    "<tool_call>\n<function=convert>\n<parameter=amount>\n{}\n</parameter>\n<parameter=unit>\n{}\n</parameter>\n"
    "<parameter=to>\n{}\n</parameter>\n</function>\n</tool_call>"
)


@pytest.fixture(scope="module")
def domain():
    return load_domain(NAME)


# The domain.


def test_it_has_what_a_domain_needs(domain):
    assert sum(len(domain.tasks(split)) for split in Split) == 280
    assert min(len(domain.tasks(split)) for split in Split) == 56
    check_disjoint(domain.splits)
    check_catalogue(domain.catalogue)
    assert check_source(domain.h0) == check_source(domain.strong) == []
    changed = [edit.apply(domain.h0) for edit in domain.catalogue]
    assert len(changed) == len(set(changed)) == 5
    assert "convert" in domain.skill
    assert load_domain(NAME).data_hash == domain.data_hash


def test_answers_are_read_from_sampled_tags(domain):
    task = domain.tasks(Split.TEST)[0]
    right = task.reference["answer"]
    assert domain.verify(task, f"<answer>{right:,}</answer>").reward == 1
    assert domain.verify(task, f"<answer>{right}</answer> or <answer>1</answer>").reward == 0
    for text in (None, str(right), "<answer>about 3</answer>"):
        assert domain.verify(task, text).answer is None


def test_a_folder_of_its_task_files_is_loaded(tmp_path):
    for number, split in enumerate(Split):
        row = {"question": f"How many inches are {number} feet?", "answer": 12 * number}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    assert load_domain(NAME, task_dir=str(tmp_path)).tasks(Split.TEST)[0].reference == {"answer": 36}
    (tmp_path / "test.jsonl").write_text('{"question": "How many?"}\n')
    with pytest.raises(TaskError, match=r"test\.jsonl:1: `answer` must be a whole number"):
        load_domain(NAME, task_dir=str(tmp_path))


# Episodes.


BUDGETS = Budgets(assistant_tokens=2_000, turns=6, tool_calls=6, wall_seconds=60.0)


def script(task) -> tuple[str, str]:
    """A call that fits the task, and the answer tags with what comes out of it."""
    small, amount, large = re.fullmatch(r"How many (\w+) are (\d+) (\w+)\?", task.inputs["question"]).groups()
    return (
        f"x</think>\n\n{CALL.format(amount, large, small)}",
        f"x</think>\n\n<answer>{task.reference['answer']}</answer>",
    )


@pytest.mark.parametrize("name", ["h0", "strong"])
def test_a_whole_episode(domain, codec, backend, name):
    task = domain.tasks(Split.TEST)[0]
    trace = roll(domain, codec, backend, getattr(domain, name), task, *script(task), budgets=BUDGETS)
    assert (trace.end, trace.verdict.reward, trace.tool_calls) == (EndReason.ANSWERED, 1, 1), trace.error
    (shown,) = [codec.decode(segment.ids) for segment in trace.segments if segment.source is Source.TOOL]
    assert str(task.reference["answer"]) in shown
    assert domain.behaviour([task], [trace], codec) == {"converted": 1.0, "answered": 1.0}


def test_an_edit_makes_the_harness_ask_for_tags(domain, codec, backend):
    task = domain.tasks(Split.TEST)[1]
    call, answer = script(task)
    bare = "x</think>\n\n" + str(task.reference["answer"])
    trace = roll(domain, codec, backend, domain.h0, task, bare, budgets=BUDGETS)
    assert (trace.end, trace.verdict.reward, trace.turns) == (EndReason.FORMAT, 0, 1), trace.error
    (edit,) = [edit for edit in domain.catalogue if edit.name == "ask_for_tags"]
    trace = roll(domain, codec, backend, edit.apply(domain.h0), task, bare, answer, budgets=BUDGETS)
    assert (trace.end, trace.verdict.reward, trace.turns) == (EndReason.ANSWERED, 1, 2), trace.error
    wrong = CALL.format(7, "foot", "inch")
    trace = roll(
        domain, codec, backend, domain.strong, task, f"x</think>\n\n{wrong}", call, bare, answer, budgets=BUDGETS
    )
    assert (trace.verdict.reward, trace.tool_calls, trace.turns) == (1, 2, 4), trace.error


def test_every_candidate_passes_the_scripted_episode(domain, backend):
    """What a search does before it rolls a candidate out."""
    validate = Validator(
        h0=domain.h0,
        search_space=SearchSpace.FULL,
        backend=backend,
        scripted=ScriptedEpisode(TaskView("t", {"question": "What?"}), lambda: scripted_host(domain), BUDGETS),
        harness_task_texts=[task.inputs["question"] for task in domain.tasks(Split.HARNESS)],
    )

    async def errors() -> list[tuple[str, ...]]:
        sources = [domain.strong, *(edit.apply(domain.h0) for edit in domain.catalogue)]
        return [await validate(source, {}) for source in sources]

    assert asyncio.run(errors()) == [()] * 6


def test_a_run_takes_it_by_its_path(capsys):
    assert main(["main", "--dry_run", f"--domain={NAME}", "--weight_tasks=0", "--harness_tasks=0",
                 "--validation_tasks=0", "--test_tasks=0"]) == 0  # fmt: skip
    assert "units: 112 weight, 56 harness, 56 validation, 56 test tasks" in capsys.readouterr().out


# Names that lead nowhere.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.toy_domain.nowhere:load", "cannot be imported"),
        (":load", "cannot be imported"),
        ("tests.toy_domain.domain:missing", "has no function 'missing'"),
        ("tests.toy_domain.domain:", "has no function ''"),
        ("tests.toy_domain.domain:FIGURES", "is no function but dict"),
        ("tests.toy_domain.tasks:parse_row", r"must take the options count_tokens: .*"),
    ],
)
def test_a_path_that_leads_nowhere_says_why(name, message):
    with pytest.raises(TaskError, match=message) as raised:
        load_domain(name, count_tokens=len)
    assert f"--domain={name}" in str(raised.value)


def test_a_name_that_is_neither_is_refused_before_anything_is_loaded():
    with pytest.raises(
        ConfigError, match=r"--domain must be one of searchqa, math, chess, or package\.module:function"
    ):
        RunConfig.from_values({"domain": "go"})
    assert sorted(DOMAINS) == list(DOMAIN_NAMES)


# The page.


def test_the_page_shows_the_code_as_it_is():
    """A line that begins with a file's path is followed by that file, whole."""
    shown = re.findall(r"^`tests/toy_domain/(\S+)`[^\n]*\n\n```\w+\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    files = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir() if path.is_file()}
    assert dict(shown) == {name: text for name, text in files.items() if name != "strong.py"}
    assert PAGE.read_text("utf-8").count(f"--domain={NAME}") >= 2
