"""The tables of a study's page, in Markdown. Shares are printed as per cent, differences as points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from whale_jax.study.estimates import Estimate, Interval
from whale_jax.study.mechanisms import overstatements, picks, switches, transfers
from whale_jax.study.questions import Contrast, contrasts, last, levels, passing
from whale_jax.study.results import Result, Results

PAPER: Mapping[str, Mapping[str, float]] = {
    "searchqa": {
        "harness_only": 38.29, "weight_only": 38.27, "prompt_only": 35.34, "fixed": 48.34, "stagewise": 43.02,
        "adaptive": 52.82,
    },
    "math": {
        "harness_only": 0.42, "weight_only": 15.42, "prompt_only": 17.92, "fixed": 24.79, "stagewise": 15.63,
        "adaptive": 26.46,
    },
    "chess": {"harness_only": 19.82, "weight_only": 22.17, "prompt_only": 25.68, "fixed": 29.83},
}  # fmt: skip
"""Best test mean@8 in per cent (arXiv 2609.00196), at 2B and 4B, with other budgets; fixed is (0.6, 6)."""

PASSED = {"searchqa": 29, "math": 49}
"""After how many per cent of stagewise's rollouts the paper's fixed runs passed its final accuracy."""


def state(results: Results) -> str:
    """Which runs there are, what they cost, and which are missing."""
    there = len(results.by_name)
    lines = [f"{there} of {there + len(results.missing)} runs have a result."]
    if there:
        runs = results.by_name.values()
        seconds = [run.content["seconds"] or 0.0 for run in runs]
        branches = any(run.content["branch"] for run in runs)
        twice = " What a branch shares with its parent is counted twice." if branches else ""
        rollouts = sum(run.rollouts for run in runs)
        lines.append(f"They took {sum(seconds) / 3600:.1f} hours, with {rollouts:,} rollouts.{twice}")
    lines += [""] if results.missing else []
    lines += [f"Missing, by seed: {_by_method(results.missing)}."] if results.missing else []
    codes: dict[str, list[str]] = {}
    for name, run in results.by_name.items():
        codes.setdefault(str(run.content["code"]), []).append(name)
    first, *others = sorted(codes, key=lambda code: -len(codes[code])) or [""]
    made = [f"`{code}` of {_by_method(codes[code])}" for code in others]
    made.append(f"`{first}` of all others" if others else f"`{first}`")
    machines = sorted({_machine(run.content) for run in results.by_name.values()})
    lines += ["", f"Code: {'; '.join(made)}. Machines: {'; '.join(machines)}."] if there else []
    lines += ["", *_unequal(results)]
    return "\n".join(lines).rstrip()


def _by_method(names: Iterable[str]) -> str:
    """Runs `domain/method/seed`, each method's together."""
    seeds: dict[str, list[str]] = {}
    for name in names:
        method, _, seed = name.rpartition("/")
        seeds.setdefault(method, []).append(seed)
    return "; ".join(f"{method} {', '.join(those)}" for method, those in seeds.items())


def _machine(content: Mapping[str, Any]) -> str:
    environment = content["environment"]
    return ", ".join(str(environment[name]) for name in ("cpus", "devices", "jax") if name in environment)


def _unequal(results: Results) -> list[str]:
    """Runs that began with the same pair and seed, and did not score the same: something was not measured alike."""
    began: dict[tuple[str, int, str], list[Result]] = {}
    for run in results.by_name.values():
        began.setdefault((run.domain, run.seed, run.content["inputs"]["harness"]), []).append(run)
    return [
        f"**{', '.join(run.name for run in runs)} began with the same pair, and its test scores differ.**"
        for runs in began.values()
        if len({run.initial for run in runs}) > 1
    ]


def frozen(results: Results) -> str:
    """What was frozen before the first run, and what had to be changed after it."""
    rows = []
    for domain, hashes in results.manifest["domains"].items():
        rows += [[domain, name, f"`{value}`"] for name, value in hashes.items()]
    configs = []
    for domain in results.domains:
        for method in results.methods(domain):
            runs = {
                name: run
                for name, run in results.manifest["runs"].items()
                if name.startswith(f"{domain}/{method}/")
            }  # fmt: skip
            seeds = ", ".join(name.split("/")[2] for name in runs)
            short = ", ".join(f"`{run['config'][:12]}`" for run in runs.values())
            budget = next(iter(runs.values()))["max_rollouts"]
            begins = {run["harness"]: f"`{run['harness'][:12]}`" for run in runs.values()}
            configs.append([domain, method, f"{budget:,}", ", ".join(begins.values()), seeds, short])
    return "\n\n".join([
        _table(["domain", "what", "SHA-256"], rows),
        _table(["domain", "method", "most rollouts", "begins with", "seeds", "configuration, by seed"], configs),
        *(f"**Amended.** {line}" for line in results.manifest.get("amended", [])),
    ])  # fmt: skip


def scores(results: Results) -> str:
    """What each method came to."""
    rows = [
        [
            domain, one.method, str(len(one.seeds)), f"{one.rollouts:,.0f}", _percent(one.initial),
            _percent(one.returned), _shift(one.gain), _percent(one.validation),
            _paper_score(domain, one.method),
        ]
        for domain in results.domains
        for one in levels(results, domain)
    ]  # fmt: skip
    head = ["domain", "method", "seeds", "rollouts", "initial, test", "returned, test", "gain, test",
            "returned, validation", "the paper"]  # fmt: skip
    return _table(head, rows) if rows else _nothing()


def picked(results: Results) -> str:
    """What the runs of each method were, and which pairs they returned."""
    rows = [
        [
            domain, one.method, _spread(one.steps), f"{one.flops / 1e12:.1f}", _spread(one.offered), str(one.initial),
            str(one.trained), str(one.searched), f"{one.rewritten} of {len(one.offered)}",
        ]
        for domain in results.domains
        for one in picks(results, domain)
    ]  # fmt: skip
    head = ["domain", "method", "training steps", "TFLOPs", "pairs with a validation score",
            "returned the initial pair", "one after training", "one after a search",
            "of all, with another harness"]  # fmt: skip
    return _table(head, rows) if rows else _nothing()


def answers(results: Results) -> str:
    """The paired differences that answer the study's questions."""
    rows = [_answer(domain, one) for domain in results.domains for one in contrasts(results, domain)]
    head = ["domain", "question", "difference", "points", "over seeds", "over seeds and tasks", "by seed",
            "seeds with the same scores", "so", "the paper"]  # fmt: skip
    return _table(head, rows)


def last_pairs(results: Results) -> str:
    """The same differences between the last pairs of the runs, on validation."""
    rows = []
    for domain in results.domains:
        for one in contrasts(results, domain, last):
            if (estimate := one.estimate) is not None:
                both = [_interval(interval, "+") for interval in (estimate.over_seeds, estimate.over_both)]
                name = f"{one.minuend} - {one.subtrahend}"
                alike = f"{one.alike} of {len(estimate.by_seed)}"
                rows.append([domain, name, f"{100 * estimate.mean:+.1f}", *both, _by_seed(estimate), alike,
                             estimate.verdict])  # fmt: skip
    head = ["domain", "difference", "points", "over seeds", "over seeds and tasks", "by seed",
            "seeds with the same scores", "so"]  # fmt: skip
    return _table(head, rows) if rows else _nothing("two methods that are compared")


def _answer(domain: str, one: Contrast) -> list[str]:
    name = f"{one.minuend} - {one.subtrahend}" + (f" ({one.note})" if one.note else "")
    paper = PAPER.get(domain, {})
    theirs = ""
    if one.minuend in paper and one.subtrahend in paper:
        theirs = f"{paper[one.minuend] - paper[one.subtrahend]:+.1f}"
    if one.estimate is None:
        return [domain, one.question, name, "missing", "", "", "", "", "", theirs]
    estimate = one.estimate
    alike = f"{one.alike} of {len(estimate.by_seed)}"
    intervals = [_interval(estimate.over_seeds, "+"), _interval(estimate.over_both, "+")]
    return [
        domain, one.question, name, f"{100 * estimate.mean:+.1f}", *intervals, _by_seed(estimate), alike,
        estimate.verdict, theirs,
    ]  # fmt: skip


def _by_seed(estimate: Estimate) -> str:
    return ", ".join(f"{100 * value:+.1f}" for value in estimate.by_seed.values())


def sooner(results: Results) -> str:
    """After which share of stagewise's rollouts the joint methods had its accuracy."""
    rows = []
    for domain in results.domains:
        for one in passing(results, domain):
            each = ", ".join("never" if share is None else f"{100 * share:.0f} %" for share in one.share.values())
            mean = "" if one.estimate is None else _percent(one.estimate, digits=0)
            reached = sum(share is not None for share in one.share.values())
            theirs = f"{PASSED[domain]} %" if one.method == "fixed" and domain in PASSED else ""
            rows.append([domain, one.method, f"{reached} of {len(one.share)}", each, mean, str(one.rewritten), theirs])
    head = ["domain", "method", "reached it", "share of stagewise's rollouts, by seed", "mean",
            "reached with another harness", "the paper"]  # fmt: skip
    return _table(head, rows) if rows else _nothing("stagewise and a joint method of the same seed")


def overstated(results: Results) -> str:
    """How far search scores promise more than is kept."""
    rows = [
        [
            domain, one.method, f"{one.changed} of {one.phases}", *map(_shift, (one.promised, one.kept, one.excess)),
            *(
                "" if part is None else _shift(part)
                for part in (one.excess_changed, one.expected, one.over_test, one.excess_on_test)
            ),
        ]
        for domain in results.domains
        for one in overstatements(results, domain)
    ]  # fmt: skip
    head = ["domain", "method", "phases that changed the harness", "promised by search", "kept on validation",
            "excess", "excess where it changed", "expected from luck", "search minus test, returned pair",
            "excess on test"]  # fmt: skip
    return _table(head, rows) if rows else _nothing("a method that searches")


def transfer(results: Results) -> str:
    """What harnesses are worth on weights that they were not found on."""
    rows = []
    for domain in results.domains:
        for method in results.methods(domain):
            for one in transfers(results, domain, method):
                if one.estimate is None:
                    rows.append([domain, method, one.where, str(one.harnesses), "nothing to compare", "", "", ""])
                    continue
                estimate = one.estimate
                both = [_interval(estimate.over_seeds, "+"), _interval(estimate.over_both, "+")]
                mean = f"{100 * estimate.mean:+.1f}"
                rows.append([domain, method, one.where, str(one.harnesses), mean, *both, estimate.verdict])
    head = ["domain", "method", "on", "accepted harnesses", "gain over h0, points", "over seeds",
            "over seeds and tasks", "so"]  # fmt: skip
    return _table(head, rows) if rows else _nothing("a run with a matrix")


def switching(results: Results) -> str:
    """What turning to the search earlier or later would have bought."""
    rows = [
        [
            domain, one.method, f"{one.steps:.0f}",
            *("" if part is None else _percent(part) for part in (one.before, one.after)),
            f"{one.searched} of {one.runs}", _percent(one.returned),
            "" if one.against is None else _points(one.against.mean, one.against.over_seeds),
            "" if one.against is None else _interval(one.against.over_both, "+"),
            "" if one.against is None else one.against.verdict,
        ]
        for domain in results.domains
        for one in switches(results, domain)
    ]  # fmt: skip
    head = ["domain", "method", "steps before the search", "validation before it", "after it",
            "returned the pair after it", "returned, test", "minus stagewise, over seeds", "over seeds and tasks",
            "so"]  # fmt: skip
    return _table(head, rows) if rows else _nothing("a branch, or a run that it is compared with")


def budgets(results: Results) -> str:
    """What the schedules really did, and which edits were accepted."""
    rows = []
    for domain in results.domains:
        for method in results.methods(domain):
            runs = results.of(domain, method).values()
            phases = [phase for run in runs for phase in run.phases]
            if not phases:
                continue
            steps = [phase["steps"] for phase in phases if phase["kind"] == "weight"]
            iterations = [phase["iterations"] for phase in phases if phase["kind"] == "search"]
            cycles = [1 + max(phase["cycle"] for phase in run.phases) for run in runs if run.phases]
            edits = [edit for run in runs for search in run.searches for edit in search["edits"]]
            rows.append([domain, method, _spread(cycles), _spread(steps), _spread(iterations), _counted(edits)])
    head = ["domain", "method", "cycles", "steps of a weight phase", "iterations of a search phase", "accepted edits"]
    return _table(head, rows) if rows else _nothing()


def _spread(values: Sequence[int]) -> str:
    return f"{median(values):g} ({min(values)} to {max(values)})" if values else ""


def _counted(names: Sequence[str]) -> str:
    often_first = sorted(Counter(names).items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name} x {count}" for name, count in often_first)


def _nothing(what: str = "") -> str:
    return f"No run yet{' of ' + what if what else ''}."


def _paper_score(domain: str, method: str) -> str:
    score = PAPER.get(domain, {}).get(method)
    return "" if score is None else f"{score:.1f}"


def _percent(estimate: Estimate, digits: int = 1) -> str:
    interval = _interval(estimate.over_seeds, "", digits)
    return f"{100 * estimate.mean:.{digits}f}" + (f" ({interval})" if interval else "")


def _shift(estimate: Estimate) -> str:
    return _points(estimate.mean, estimate.over_seeds)


def _points(mean: float, interval: Interval | None) -> str:
    return f"{100 * mean:+.1f}" + (f" ({_interval(interval, '+')})" if interval is not None else "")


def _interval(interval: Interval | None, sign: str, digits: int = 1) -> str:
    return "" if interval is None else f"{100 * interval[0]:{sign}.{digits}f} to {100 * interval[1]:{sign}.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)
