"""A probe of a run's current pair, in a scratch directory beside the run: the run itself is only read."""

import asyncio
import dataclasses
import tempfile
from pathlib import Path

from whale_jax.assemble import assemble
from whale_jax.config import ConfigError
from whale_jax.evaluation.history import Made, Station
from whale_jax.evaluation.probe import Findings, lend_checkpoint, run_trials, trial_schedule, trial_settings
from whale_jax.evaluation.subject import Subject
from whale_jax.report.progress import Progress
from whale_jax.run import Run


def probe_run(subject: Subject, progress: Progress) -> tuple[Station, Findings]:
    """Both trials from the latest pair of a run.

    Args:
        subject: read with `trains`, so that it has the run's own weight and harness tasks.

    Raises:
        ConfigError: the checkpoint of the latest pair is not kept, or the proposer lacks something.
        Others as `assemble` and the phases do.
    """
    run_dir, station = subject.directory, subject.stations[-1]
    assert run_dir is not None
    if not subject.kept(station.pair):
        raise ConfigError(f"--probe: the checkpoint of step {station.pair.step}, the run's latest, is not there")
    cycle = sum(other.made is Made.SEARCH for other in subject.stations)
    schedule = trial_schedule(station.pair.step, subject.config.schedule.probe_steps)
    parts = dataclasses.replace(subject.parts, harness=subject.stations[0].pair.harness, schedule=schedule)

    async def trials(scratch: Run) -> Findings:
        try:
            return await run_trials(scratch, cycle, station.pair)
        finally:
            await scratch.runner.close()

    with tempfile.TemporaryDirectory(prefix=f".{run_dir.name}-probe-", dir=run_dir.absolute().parent) as name:
        lend_checkpoint(run_dir / "checkpoints", Path(name), station.pair.step)
        with assemble(trial_settings(subject.config), parts, Path(name), progress) as scratch:
            return station, asyncio.run(trials(scratch))
