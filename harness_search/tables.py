"""What a finished search says: three scores that are never mixed, what it cost, and what looks like reward hacking.

The *search score* chose the candidate and is too high for that. The *confirmation score* comes from fresh rollouts that
chose nothing. A *validation score* is the business of whoever has a validation set; there is none here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness_search.archive import Archive
from harness_search.audit import Audit
from harness_search.inflation import inflation
from harness_search.workspace import total_usage


def summary(archive: Archive, audits: Mapping[str, Audit]) -> dict[str, Any]:
    """Content of summary.json: `best`, `candidates`, `trials`, `inflation`, and the account."""
    records = archive.iterations
    best = records[-1].incumbent
    scored = {name: one.score for name, one in archive.candidates.items() if one.score is not None}
    trials = [record.confirmation for record in records if record.confirmation is not None]
    confirmed = {one.challenger: one.comparison["after"] for one in trials}
    luck = inflation(list(scored.values()))
    ends: Counter[str] = Counter()
    for record in records:
        ends.update(record.ends)
    candidates = [
        {
            "candidate": name,
            "search_score": float(score.success_rate),
            "confirmation_score": confirmed.get(name),
            "mean_turns": float(score.mean_turns),
            "answer_in_harness_text": audits[name].share if name in audits else None,
            "flagged": audits[name].flagged if name in audits else None,
        }
        for name, score in scored.items()
    ]
    return {
        "best": next(one for one in candidates if one["candidate"] == best),
        "candidates": candidates,
        "invalid": sorted(name for name, one in archive.candidates.items() if one.score is None),
        "trials": [
            {
                "incumbent": one.incumbent,
                "challenger": one.challenger,
                "accepted": one.accepted,
                "difference": one.comparison["difference"],
                "lower": one.comparison["lower"],
                "p_value": one.comparison["p_value"],
            }
            for one in trials
        ],
        "inflation": {"best_search_score": luck.best, "expected": luck.expected},
        "rule": records[-1].rule,
        "iterations": len(records) - 1,
        "decision": str(records[-1].decision),
        "rollouts": sum(record.rollouts for record in records),
        "missing": sum(record.missing for record in records),
        "sampled_tokens": sum(record.sampled_tokens for record in records),
        "ends": dict(sorted(ends.items())),
        "proposer": total_usage(records),
    }


def summary_text(content: Mapping[str, Any]) -> str:
    """The summary as a table and a few lines."""
    rows = [("", "search score", "confirmation", "turns", "answer in harness text")]
    for one in content["candidates"]:
        mark = " *" if one["candidate"] == content["best"]["candidate"] else ""
        flag = " FLAGGED" if one["flagged"] else ""
        rows.append(
            (
                one["candidate"] + mark,
                _percent(one["search_score"]),
                _percent(one["confirmation_score"]),
                f"{one['mean_turns']:.1f}",
                _percent(one["answer_in_harness_text"]) + flag,
            )
        )
    luck = content["inflation"]
    lines = _table(rows)
    lines.append("* best; a search score is too high for having been chosen by, a confirmation score is not")
    lines.append(
        f"the largest search score, {_percent(luck['best_search_score'])}, is likely to be "
        f"{100 * luck['expected']:.1f} points too high"
    )
    lines.append(
        f"{content['iterations']} iterations, {content['rollouts']:,} rollouts, "
        f"{content['sampled_tokens']:,} sampled tokens, "
        f"proposer: {', '.join(f'{name} {_amount(value)}' for name, value in content['proposer'].items()) or 'nothing'}"
    )
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _amount(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.4f}".rstrip("0").rstrip(".")
