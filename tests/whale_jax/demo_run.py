"""The smallest run that passes through every part, for the tests of the whole loop."""

import os
import subprocess
import sys
from pathlib import Path

SMALL = (
    "--weight_tasks=12",
    "--harness_tasks=4",
    "--validation_tasks=4",
    "--test_tasks=4",
    "--prompts_per_step=4",
    "--samples_per_prompt=2",
    "--weight_budget_epochs=1.67",
    "--weight_phase_epochs=1",
    "--search_phase_iterations=1",
    "--candidates=2",
    "--validation_samples=2",
    "--test_samples=2",
    "--checkpoint_every=2",
    "--slots=8",
    "--concurrency=12",
    "--rows=2",
)
"""Two cycles: 3 training steps in two commits and one iteration, then 2 steps in two commits and one iteration."""


def command(run_dir: Path, *flags: str) -> list[str]:
    """The command line of a small run."""
    return [sys.executable, "-m", "whale_jax.main", f"--run_dir={run_dir}", *SMALL, *flags]


WITHOUT_TORCH = Path(__file__).parents[1] / "without_torch"
"""A module `torch` that cannot be imported: a run needs none, and tensorboardX loads for seconds what it finds."""


def environment(cache: Path) -> dict[str, str]:
    """The environment of a run; compiled programs are kept in `cache`, so that restarts cost seconds."""
    paths = [str(WITHOUT_TORCH), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


ONE_DEVICE = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
"""Environment of a run with one engine and one training lane: less to start, for tests that start often."""


def complete(run_dir: Path, cache: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs to the end, under more environment `variables`; fails the test with the output if it does not get there."""
    done = subprocess.run(
        command(run_dir, *flags),
        env=environment(cache) | variables, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def outcome(run_dir: Path) -> dict[str, bytes]:
    """Every byte that must not depend on how a run got there: journal, archives, returned pair."""
    kept = [
        *sorted((run_dir / "journal").glob("*.json")),
        *sorted(run_dir.glob("cycle_*/search/candidates/*/*")),
        *sorted(run_dir.glob("cycle_*/search/iterations/*")),
        *sorted(run_dir.glob("evals/*")),
        *sorted((run_dir / "export").rglob("*")),
        run_dir / "harness.diff",
    ]
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in kept if path.is_file()}
