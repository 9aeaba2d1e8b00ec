"""The co-adaptation table of a run: every kept weights under every accepted harness, on the same tasks and keys.

Its cells are kept under `<run_dir>/matrix/`, one file each, named by everything that a score depends on, so an
interrupted table goes on where it was. Nothing else of the run directory is written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from whale_jax.assemble import episode_budgets
from whale_jax.config import ConfigError
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.evaluation.history import Made, Station
from whale_jax.evaluation.pairs import PairServer
from whale_jax.evaluation.show import columns, percent
from whale_jax.evaluation.subject import Subject
from whale_jax.journal import canonical
from whale_jax.pair import Pair

FORMAT = 1


@dataclass(frozen=True)
class Arm:
    """One row or column: distinct weights or a distinct harness.

    Attributes:
        label: the phases that it came out of; several where they changed nothing.
        pair: whose weights, or whose harness, the arm is.
    """

    label: str
    pair: Pair


@dataclass(frozen=True)
class Matrix:
    """The table.

    Attributes:
        weights: columns, in the order of the run.
        harnesses: rows, in the order of the run.
        left_out: weights whose checkpoints were not kept; they have no column.
        cells: (row, column) → figures.
    """

    weights: Sequence[Arm]
    harnesses: Sequence[Arm]
    left_out: Sequence[Arm]
    cells: Mapping[tuple[int, int], Evaluation]


def weights_arms(stations: Sequence[Station]) -> list[Arm]:
    """The initial weights and those at the ends of weight phases, each once."""
    return _distinct(stations, Made.WEIGHTS, lambda pair: pair.weights)


def harness_arms(stations: Sequence[Station]) -> list[Arm]:
    """The initial harness and the accepted ones of all search phases, each once."""
    return _distinct(stations, Made.SEARCH, lambda pair: pair.harness_hash)


def _distinct(stations: Sequence[Station], made: Made, identity: Callable[[Pair], str]) -> list[Arm]:
    arms: dict[str, Arm] = {}
    for station in stations:
        if station.made not in (Made.INITIAL, made):
            continue
        label = station.label.partition(",")[0]
        known = arms.get(identity(station.pair))
        arms[identity(station.pair)] = Arm(f"{known.label} = {label}" if known else label, (known or station).pair)
    return list(arms.values())


class Cells:
    """The cells on disk, one file for each pair and way of measuring."""

    def __init__(self, directory: Path, conditions: Mapping[str, Any]):
        """Args:
        directory: made with the first cell.
        conditions: what a score depends on, the pair apart; JSON.
        """
        self._directory = directory
        self._conditions = conditions

    def read(self, pair: Pair) -> Evaluation | None:
        """The cell's figures, or None while it is not measured.

        Raises:
            ConfigError: the file is not one that this class wrote for this pair.
        """
        path, head = self._place(pair)
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_bytes())
            if {name: content[name] for name in head} != head:
                raise ValueError("it is about something else")
            return Evaluation.from_json(content["evaluation"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: is damaged ({error}); remove it, and the cell is measured again") from error

    def write(self, pair: Pair, evaluation: Evaluation) -> None:
        """Keeps a cell; it is there whole or not at all."""
        path, head = self._place(pair)
        self._directory.mkdir(exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(canonical({**head, "step": pair.step, "evaluation": evaluation.to_json()}))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _place(self, pair: Pair) -> tuple[Path, dict[str, Any]]:
        head = {
            "format": FORMAT,
            "weights": pair.weights,
            "harness": pair.harness_hash,
            "conditions": json.loads(canonical(self._conditions)),
        }
        return self._directory / f"{hashlib.sha256(canonical(head)).hexdigest()[:32]}.json", head


def conditions(subject: Subject, samples: int) -> dict[str, Any]:
    """Everything that a score on the subject's tasks depends on beside weights and harness."""
    config, inputs = subject.config, subject.parts.inputs
    rollout, judge = config.rollout, config.judge
    prompt = judge.judge_prompt and hashlib.sha256(Path(judge.judge_prompt).read_bytes()).hexdigest()
    return {
        "domain": subject.parts.domain.name,
        "data": inputs.data,
        "retriever": config.data.retriever_url,
        "split": subject.split.value,
        "tasks": hashlib.sha256(canonical([task.id for task in subject.tasks])).hexdigest(),
        "samples": samples,
        "seed": config.run.seed,
        "budgets": dataclasses.asdict(episode_budgets(config)),
        "max_len": rollout.max_len,
        "extend_chunk": rollout.extend_chunk,
        "thinking": rollout.thinking,
        "sampling": [rollout.temperature, rollout.top_p, rollout.top_k],
        "unclosed_thinking": rollout.unclosed_thinking,
        "dtype": config.model.compute_dtype,
        "judge": [judge.judge_model, prompt],
        "tokenizer": inputs.tokenizer,
        "template": inputs.template,
    }


def plan(subject: Subject, cells: Cells) -> tuple[Matrix, list[tuple[int, int]]]:
    """The table as far as it is measured, and the cells that are missing, in an order that swaps weights least.

    Raises:
        ConfigError: a kept cell is damaged.
    """
    every = weights_arms(subject.stations)
    weights = [arm for arm in every if subject.kept(arm.pair)]
    left_out = [arm for arm in every if not subject.kept(arm.pair)]
    harnesses = harness_arms(subject.stations)
    places = [(row, column) for column in range(len(weights)) for row in range(len(harnesses))]
    found = {place: cells.read(_pair(weights, harnesses, place)) for place in places}
    measured = {place: evaluation for place, evaluation in found.items() if evaluation is not None}
    return Matrix(weights, harnesses, left_out, measured), [place for place in places if found[place] is None]


async def measure(
    server: PairServer,
    matrix: Matrix,
    missing: Sequence[tuple[int, int]],
    subject: Subject,
    samples: int,
    cells: Cells,
    say: Callable[[str], None],
) -> Matrix:
    """The whole table; every cell is on disk before the next begins. Raises as `PairServer.evaluate` does."""
    done = dict(matrix.cells)
    for place in missing:
        pair = _pair(matrix.weights, matrix.harnesses, place)
        done[place] = await server.evaluate(pair, subject.tasks, samples=samples)
        cells.write(pair, done[place])
        row, column = place
        say(
            f"{len(done)} of {len(matrix.weights) * len(matrix.harnesses)}: weights {matrix.weights[column].label}, "
            f"harness {matrix.harnesses[row].label}: {percent(done[place])[0]} %"
        )
    return dataclasses.replace(matrix, cells=done)


def _pair(weights: Sequence[Arm], harnesses: Sequence[Arm], place: tuple[int, int]) -> Pair:
    row, column = place
    return Pair(weights[column].pair.step, weights[column].pair.weights, harnesses[row].pair.harness)


def print_matrix(console: Console, matrix: Matrix, split: str, samples: int) -> None:
    """Weights across, harnesses down: mean@k above its 95 % interval, in per cent."""
    console.print(f"{split} mean@{samples} and its 95 % interval, in %; weights across, harnesses down")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column("")
    for arm in matrix.weights:
        table.add_column(f"{arm.label}\nstep {arm.pair.step}", justify="right")
    for row, arm in enumerate(matrix.harnesses):
        figures = [percent(matrix.cells[row, column]) for column in range(len(matrix.weights))]
        table.add_row(arm.label, *(f"{mean}\n{interval}" for mean, interval in figures))
    console.print(table, width=columns(console))
    for arm in matrix.left_out:
        console.print(f"left out: weights {arm.label}: the checkpoint of step {arm.pair.step} was not kept")


def to_json(matrix: Matrix) -> dict[str, Any]:
    """`weights`, `harnesses`, `left_out`, and `cells`, each with its figures and its paired difference to the pair of
    initial weights and initial harness."""
    initial = matrix.cells[0, 0]
    cells = []
    for (row, column), evaluation in sorted(matrix.cells.items()):
        difference = evaluation.minus(initial).to_json()
        mean = None if math.isnan(evaluation.mean) else evaluation.mean
        cells.append({
            "weights": column,
            "harness": row,
            **evaluation.summary(),
            "mean_at_k": mean,
            "minus_initial": {"mean": difference["mean"], "ci95": difference["ci95"]},
        })  # fmt: skip
    columns_ = [{"label": arm.label, "step": arm.pair.step, "weights": arm.pair.weights} for arm in matrix.weights]
    left_out = [{"label": arm.label, "step": arm.pair.step, "weights": arm.pair.weights} for arm in matrix.left_out]
    rows = [{"label": arm.label, "harness": arm.pair.harness_hash} for arm in matrix.harnesses]
    return {"weights": columns_, "harnesses": rows, "left_out": left_out, "cells": cells}
