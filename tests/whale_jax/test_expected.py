"""What a run is expected to do, before it starts."""

from whale_jax.config import RunConfig
from whale_jax.domains.task import Split
from whale_jax.expected import Expected, expected_work
from whale_jax.schedule import make_schedule

SIZES = {Split.WEIGHT: 384, Split.HARNESS: 128, Split.VALIDATION: 96, Split.TEST: 200}


def expected(config: RunConfig) -> Expected:
    schedule = make_schedule(config.schedule, num_tasks=384, prompts_per_step=config.rollout.prompts_per_step)
    return expected_work(config, schedule, SIZES)


def test_expected_work_ends_with_the_budget():
    config = RunConfig.from_values({"schedule": "stagewise"})
    rollouts, cycles, evaluations = expected(config)
    assert (rollouts, cycles, evaluations) == (18 * 192 + 128 + 6 * 384, 1, 3 * 192 + 3200)
    cut = RunConfig.from_values({"schedule": "adaptive", "weight_budget_epochs": 2, "max_rollouts": 6016})
    assert expected(cut)[0] == 6016
    alone = RunConfig.from_values({"schedule": "weight_only", "eval_every": 9, "max_rollouts": 10**6})
    assert expected(alone) == (18 * 192, 1, 4 * 192 + 3200)
    paper = RunConfig.from_values({"select_on": "test", "test_schedule": "always"})
    assert expected(paper)[2] == 5 * (192 + 1600)
