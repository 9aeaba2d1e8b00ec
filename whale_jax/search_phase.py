"""A search phase: Meta-Harness over the harness's source while the weights stand still (PAPER section 4)."""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from harness_search import search
from harness_search.accept import AcceptRule, ArchiveMax, Paired
from harness_search.archive import Archive
from harness_search.audit import Answers, audit
from harness_search.records import IterationRecord
from harness_search.scoring import Arm, Outcome
from harness_search.tables import summary
from whale_jax.domains.task import Task
from whale_jax.journal import JournalError, canonical
from whale_jax.pair import Pair
from whale_jax.rollout.runner import EpisodeRequest
from whale_jax.run import Run
from whale_jax.schedule import SearchSignals
from whale_jax.settings import SearchSettings


async def search_phase(run: Run, cycle: int, pair: Pair) -> Pair:
    """Searches from the incoming harness; the archive's best moves on.

    Raises:
      SearchInfrastructureError: too many episodes of an evaluation could not be scored.
      ArchiveError, JournalError: the archive was changed, or is not that of the journal.
    """
    run.begin_phase("search", cycle)
    tasks = run.harness_tasks
    archive = Archive(run.dir / f"cycle_{cycle:03d}" / "search")

    async def evaluate(arms: Sequence[Arm], task_ids: Sequence[str], seeds: Sequence[int]) -> AsyncIterator[Outcome]:
        for arm in arms:
            requests = [
                EpisodeRequest(task=tasks[task_id], sample=seed, purpose="search", cycle=cycle, step=0)
                for task_id in task_ids
                for seed in seeds
            ]
            async for trace in run.stream(pair.step, arm.source, requests):
                yield Outcome(
                    arm=arm.id,
                    task_id=trace.task_id,
                    seed=trace.sample,
                    reward=trace.verdict.reward,
                    end=trace.end.value,
                    turns=trace.turns,
                    sampled_tokens=trace.sampled_tokens,
                    trace=trace.to_public_json(run.codec),
                )

    def on_commit(record: IterationRecord) -> None:
        where = {"cycle": cycle, "iteration": record.iteration}
        fields = {**where, **_entry(record, archive, pair)}
        entry = run.journal.replay("search", **where)
        if entry is None:
            run.journal.append("search", fields)
        else:
            _check_same(entry, fields, archive)
            run.progress.advance(record.rollouts, replayed=True)
        run.spend(record.rollouts)
        _show(run, cycle, record, replayed=entry is not None)

    result = await search.run(
        evaluate,
        archive=archive,
        incoming_source=pair.harness,
        proposer=run.proposer,
        task_ids=list(tasks),
        seeds=(0,),
        candidates=run.config.search.candidates,
        stop=lambda signals: run.schedule.after_iteration(SearchSignals(signals.best_scores, 0)).stop,
        validate=run.validator,
        rule=acceptance(run.config.search),
        tag=run.score_tag(pair),
        max_rollouts=run.rollouts_left,
        seed=proposer_seed(run.config.run.seed, cycle),
        on_commit=on_commit,
    )
    audits = audit(archive, lambda task_id: answers(tasks[task_id]))
    run.searches.append({"cycle": cycle, **summary(archive, audits)})
    for name in sorted(name for name, one in audits.items() if one.flagged):
        run.progress.say(
            f"cycle {cycle + 1}, search · {name} is flagged: text that it wrote itself holds the right answer in "
            f"{audits[name].share:.0%} of its episodes ({audits[name].incumbent_share:.0%} in its incumbent's)"
        )
    run.end_phase()
    return Pair(pair.step, pair.weights, result.best.source)


def _show(run: Run, cycle: int, record: IterationRecord, *, replayed: bool) -> None:
    """A search iteration on the terminal, and in the metrics unless an earlier job wrote it there."""
    what = "incoming harness" if record.iteration == 0 else f"iteration {record.iteration}"
    slots = ", ".join(
        f"{slot.candidate or 'slot'} {slot.state if slot.success_rate is None else f'{slot.success_rate:.3f}'}"
        for slot in record.slots
    )
    run.progress.say(
        f"cycle {cycle + 1}, search · {what}: {slots} · best is {record.incumbent} at {record.best_score:.3f}"
    )
    if replayed:
        return
    run.commit_account()
    run.metrics.write(
        "search",
        run.rollouts,
        {
            "cycle": cycle,
            "iteration": record.iteration,
            "best_score": record.best_score,
            "rollouts": record.rollouts,
            "missing": record.missing,
            "sampled_tokens": record.sampled_tokens,
        },
    )


def acceptance(settings: SearchSettings) -> AcceptRule:
    """The rule that the settings name."""
    return Paired(settings.confirm_rollouts) if settings.acceptance == "paired" else ArchiveMax()


def answers(task: Task) -> Answers:
    """A task's accepted answers and inputs as texts, for the audit; it stays on this side of the search."""
    reference = task.reference
    accepted = reference.get("answers", reference.get("answer", reference.get("moves", ())))
    texts = [accepted] if isinstance(accepted, str) else [str(one) for one in accepted]
    return Answers(texts, [value for value in task.inputs.values() if isinstance(value, str)])


def _entry(record: IterationRecord, archive: Archive, pair: Pair) -> dict[str, Any]:
    return {
        **record.to_json(),
        "weights": pair.weights,
        "incoming": pair.harness_hash,
        "incumbent_hash": archive.candidates[record.incumbent].hash,
    }


def _check_same(entry: Mapping[str, Any], fields: Mapping[str, Any], archive: Archive) -> None:
    """Raises JournalError unless the archive tells of an iteration what the journal does."""
    here = json.loads(canonical(fields))
    differing = sorted(name for name in here if entry.get(name) != here[name])
    if differing:
        raise JournalError(
            f"{archive.directory}: iteration {entry['iteration']} is not the one in the journal's entry "
            f"{entry['entry']:06d} ({', '.join(differing)} differ); restore the archive from a copy"
        )


def proposer_seed(run_seed: int, cycle: int) -> int:
    """Root of a search phase's proposer sessions: another one in every cycle."""
    digest = hashlib.blake2b(f"{run_seed}/{cycle}".encode(), digest_size=8, person=b"search-phase").digest()
    return int.from_bytes(digest, "big")
