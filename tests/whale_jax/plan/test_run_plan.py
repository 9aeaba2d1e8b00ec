"""A whole run's plan: stages, counts, hours, money and handing over, from made-up steps; the command end to end."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from absl import flags as absl_flags

from whale_jax import flags
from whale_jax.assemble import checkpoint_directory
from whale_jax.config import RunConfig
from whale_jax.plan import compiled, run_command, run_plan, stages
from whale_jax.plan.calibration import Calibration, CalibrationError
from whale_jax.plan.chips import CHIPS, Chip, Topology
from whale_jax.plan.counts import count
from whale_jax.plan.fleet import Fleet
from whale_jax.plan.hours import Assumptions, Clock, makespan
from whale_jax.plan.live import Spread
from whale_jax.plan.plan import Plan, PlanError
from whale_jax.plan.prices import PriceError, Prices
from whale_jax.plan.programs import Step
from whale_jax.plan.run_report import changes, page
from whale_jax.plan.sizes import SIZES

GIB = 2**30
FLAGFILE = "configs/searchqa_2b.flags"
V5E = Topology("v5e:4x4", CHIPS["v5e"], [SimpleNamespace(device_kind="TPU v5e")] * 16)


def settings(*arguments):
    values = absl_flags.FlagValues()
    flags.define(values)
    return flags.parse(["main", f"--flagfile={FLAGFILE}", *arguments], values)


def step_plan(work, topology, mesh, folder=None):
    """A tenth of a second; temporaries of 2 GiB in training, of 0.25 GiB in serving."""
    params = 7 * GIB // 16
    kinds = (
        {"parameters": params, "optimizer": 2 * params, "gradients": params, "activations": 2 * GIB}
        if work.step is Step.TRAIN
        else {"parameters": 3.5 * GIB, "cache": GIB, "activations": GIB // 4}
    )
    sizes = kinds | {"total": sum(kinds.values())}
    return Plan(mesh, topology.chip.hbm_bytes, sizes, 1.0, None, 0.0, step_seconds_bound=0.1)


USUAL, TWICE = Assumptions(), Calibration.assumed()
PLANS = {step: step_plan(SimpleNamespace(step=step), V5E, (1, 1, 1)) for step in Step}


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Plans a run without a compiler."""
    monkeypatch.setattr(run_plan, "cached_plan", step_plan)

    def make(*arguments, topology=V5E, assumed=USUAL, calibration=TWICE):
        return run_plan.plan_run(
            settings(*arguments), SIZES["2b"], topology, assumed=assumed, calibration=calibration,
            prices=Prices.read(), price_kind="on_demand", folder=tmp_path,
        )  # fmt: skip

    return make


def test_counts_of_the_papers_run():
    """296 steps of 2,048; seven phases of 44 steps, the last one shorter; 1 + 6 x 3 harnesses of 256 tasks each."""
    found = count(settings())
    assert (found.steps, found.cycles, found.searches, found.iterations) == (296, 7, 7, 6)
    assert found.rollouts["train"] == 296 * 2048
    assert found.rollouts["search"] == 7 * 19 * 256
    assert found.evaluations == 1 + 14 + 296 // 7
    assert found.rollouts["evaluation"] == found.evaluations * 2048 + 2 * 5600


def test_counts_follow_the_schedule():
    assert count(settings("--nofinal_search")).searches == 6
    assert count(settings("--schedule=weight_only")).searches == 0
    alone = count(settings("--schedule=harness_only"))
    assert (alone.steps, alone.cycles, alone.searches, alone.iterations) == (0, 0, 1, 40)
    assert count(settings("--test_schedule=always")).tests == count(settings()).evaluations
    with pytest.raises(PlanError, match="--weight_tasks=0 takes all tasks"):
        count(settings("--domain=my.module:load"))


def test_a_slot_holds_a_whole_window():
    """2B: 12,288 bytes of keys and values for each of 32,768 positions, 19.7 MB of states and windows."""
    fleet = Fleet.of(settings(), SIZES["2b"], V5E)
    assert fleet.slot_bytes == 12_288 * 32_768 + 18 * (16 * 128 * 128 * 4 + 3 * 6144 * 2)
    assert (fleet.hosts, fleet.replicas, fleet.rows, fleet.slots) == (4, 16, 16, 32)
    assert fleet.busy_slots == 32
    assert Fleet.of(settings("--concurrency=64"), SIZES["2b"], V5E).busy_slots == 16
    assert Fleet.of(settings("--rows=17"), SIZES["2b"], V5E).rows == 32


def test_replicas_are_spread_where_one_chip_does_not_hold_them():
    assert Fleet.of(settings(), SIZES["4b"], V5E).tensor == 1
    assert Fleet.of(settings(), SIZES["9b"], V5E).tensor == 4
    with pytest.raises(PlanError, match="does not fit beside the training state"):
        Fleet.of(settings(), SIZES["9b"], dataclasses.replace(V5E, devices=V5E.devices[:4]))


def test_what_lies_on_a_chip_in_every_stage():
    fleet = Fleet.of(settings(), SIZES["2b"], V5E)
    found = stages.occupancies(fleet, PLANS)
    trainer = (7 + 14) / 16 + 7 / 32
    pool = 32 * fleet.slot_bytes / GIB + 1 / 16
    totals = {stage: one.total / GIB for stage, one in found.items()}
    assert totals["rollout"] == pytest.approx(trainer + 3.5 + pool + 0.25)
    assert totals["train"] == pytest.approx(trainer + 7 / 16 + 3.5 + 2), "the slots are given up for training"
    assert totals["swap"] == pytest.approx(trainer + 7 / 32 + 7)
    assert totals["checkpoint"] == pytest.approx(trainer + 3.5 + pool)


def test_the_largest_that_fits_is_the_largest():
    fleet, limit = Fleet.of(settings(), SIZES["2b"], V5E), CHIPS["v5e"].hbm_bytes
    largest = stages.largest(fleet, limit, PLANS)

    def most(slots, *among):
        found = stages.occupancies(fleet.with_slots(slots), PLANS)
        return max(found[stage].total for stage in among)

    assert most(largest.slots, *stages.Stage) <= limit < most(largest.slots + 1, *stages.Stage)
    train = stages.occupancies(fleet, PLANS)[stages.Stage.TRAIN]
    rest = train.total - train.slots - train.temporaries
    rows = largest.rows // 16
    assert rest + rows * 2 * GIB <= limit < rest + (rows + 1) * 2 * GIB, "2 GiB for each row of a chip"
    small = rest - 1
    assert stages.largest(fleet, small, PLANS).slots == 0, "training does not fit, whatever the slots"


def test_training_is_planned_on_the_mesh_of_the_settings():
    fleet = Fleet.of(settings("--mesh_data=2", "--mesh_fsdp=4", "--mesh_tensor=2", "--rows=3"), SIZES["2b"], V5E)
    assert (fleet.mesh(Step.TRAIN), fleet.rows) == ((2, 4, 2), 8)
    assert Fleet.of(settings("--rows=3"), SIZES["2b"], V5E).mesh(Step.TRAIN) == (1, 16, 1)
    with pytest.raises(PlanError, match="their product must be the number of chips of the topology, 16"):
        Fleet.of(settings("--mesh_fsdp=8"), SIZES["2b"], V5E)


def test_makespan():
    assert makespan([3, 3, 3, 3], 2) == 6
    assert makespan([5, 1, 1, 1], 2) == 5
    assert makespan([7], 4) == 7


def clock(*arguments, assumed=USUAL, factor=2.0):
    calibration = Calibration(dict.fromkeys(Step, factor), None, "test")
    return Clock(Fleet.of(settings(*arguments), SIZES["2b"], V5E), PLANS, CHIPS["v5e"], calibration, assumed)


def test_rollouts_last_as_long_as_their_longest_chain():
    """32 slots, 32 episodes each: the longest one, and what is extended, at 0.1 s a step and a factor of 2."""
    made = clock(assumed=Assumptions(context_tokens=256.0))
    found = made.rollouts(32 * 16)
    longest = max(made.lengths(32))
    assert found.seconds == pytest.approx(0.2 * (longest + 32 * 256 / (16 * 32 * 0.5)))
    assert found.slot_share == pytest.approx(sum(made.lengths(32)) / (32 * longest))
    assert clock(factor=4.0).rollouts(2048).seconds == pytest.approx(2 * clock().rollouts(2048).seconds)


def test_lengths_are_spread_or_given():
    assert max(clock().lengths(256)) == 8191
    given = clock(assumed=Assumptions(episode_tokens=500.0)).lengths(256)
    assert sum(given) / 256 == pytest.approx(500, rel=0.01)
    assert set(clock(assumed=Assumptions(spread=Spread.FULL)).lengths(4)) == {8191}


def test_training_takes_what_is_accepted():
    """1,024 accepted trajectories in 16 updates of one micro-batch; none, none."""
    assert clock().training(2048) == pytest.approx(16 * 0.2)
    assert clock(assumed=Assumptions(accepted_share=0.0)).training(2048) == 0
    assert clock("--minibatch=256").training(2048) == pytest.approx(4 * 4 * 0.2)


def test_a_search_waits_for_its_proposer():
    counts = count(settings())
    none, _ = clock().search(counts)
    one = clock().rollouts(256).seconds
    assert none == pytest.approx(19 * one)
    long = Assumptions(proposer_seconds=3e4)
    seconds, waits = clock(assumed=long).search(counts)
    assert seconds == pytest.approx(one + 6 * (3e4 + one))
    assert waits == pytest.approx(seconds - 19 * one)


def test_hours_and_money(planned):
    found = planned(assumed=Assumptions(proposer_seconds=900.0))
    told = found.as_json("2b")
    assert told["hours"]["total"] == pytest.approx(sum(told["hours"]["by_stage"].values()))
    assert told["hours"]["chip_hours"] == pytest.approx(16 * told["hours"]["total"])
    assert told["hours"]["dollars"] == pytest.approx(1.2 * told["hours"]["chip_hours"])
    assert told["hours_if_budgets_are_used_up"]["total"] > told["hours"]["total"]
    assert told["hours"]["proposer"] == 7 * 6 * 0.25
    assert 0 <= told["hours"]["proposer_wait"] <= 7 * 6 * 0.25
    assert told["hours"]["proposer_idle_share"] == told["hours"]["proposer_wait"] / told["hours"]["total"]
    doubled = planned(
        assumed=Assumptions(proposer_seconds=900.0), calibration=Calibration(dict.fromkeys(Step, 4.0), None, "test")
    )
    assert doubled.hours.by_stage["rollout"] == pytest.approx(2 * found.hours.by_stage["rollout"])
    assert doubled.hours.by_stage["start"] == found.hours.by_stage["start"]


def test_handing_over_frees_the_pod_while_a_proposer_writes(planned):
    """Nothing is gained where the proposer takes no time: the host needs longer than the pod for the same episodes."""
    slow = planned(assumed=Assumptions(proposer_seconds=3600.0)).as_json("2b")["stop_after_weight_phase"]
    assert (slow["pod_chips"], slow["host_chips"]) == (16, 4)
    assert slow["saved_chip_hours"] > 0
    assert slow["saved_dollars"] == pytest.approx(1.2 * slow["saved_chip_hours"])
    quick = planned().as_json("2b")["stop_after_weight_phase"]
    assert quick["saved_chip_hours"] < slow["saved_chip_hours"]
    assert planned("--schedule=weight_only").hand_over is None
    assert planned("--schedule=harness_only").hand_over is None


def test_the_page_says_what_to_change(planned):
    found = planned("--slots=64")
    assert found.fits is False
    text = page(found, "2b")
    assert f"-> --slots={found.largest.slots}" in text
    assert "DOES NOT FIT" in text
    assert "NOT CHECKED" in text, "the prices"
    assert planned("--slots=8").fits
    assert changes(planned("--slots=8")) == []


def test_a_step_that_does_not_fit_has_no_hours(planned, monkeypatch):
    def refused(work, topology, mesh, folder):
        made = step_plan(work, topology, mesh)
        if work.step is not Step.TRAIN:
            return made
        return dataclasses.replace(
            made, bytes_per_chip={**made.bytes_per_chip, "activations": 20 * GIB}, step_seconds_bound=None
        )

    monkeypatch.setattr(run_plan, "cached_plan", refused)
    found = planned()
    assert found.hours is None
    assert found.why_no_hours == "no time is known for train: the program does not fit"
    assert "-> --remat=group" in page(found, "2b")
    assert found.largest.rows == 0
    assert 0 < found.largest.row_len < 32_768


def test_prices(tmp_path):
    assert set(Prices.read().by_chip) == set(CHIPS)
    assert Prices.read().of("v5e", "on_demand") == 1.2
    assert Prices.read().of("v5e", "spot") is None
    path = tmp_path / "mine.json"
    path.write_text(
        '{"source": "a letter", "written_down": "2027-01-01", "checked": true, "dollars_per_chip_hour": {}}'
    )
    assert Prices.read(path).described == "a letter, written down 2027-01-01"
    path.write_text("{}")
    with pytest.raises(PriceError, match="not in the form of"):
        Prices.read(path)


def test_calibration_files(tmp_path):
    path = tmp_path / "c.json"
    chip = Chip("cpu", 1e11, 1e10, 1e10, 1e10)
    written = Calibration(dict.fromkeys(Step, 1.5), chip, "measured", {"train": {"seconds": 1.0}})
    written.write(path)
    found = Calibration.read(path)
    assert (found.factors, found.chip, found.measured) == (written.factors, chip, written.measured)
    assert found.for_chip(None, "here") == chip, "devices that are not known have the measured rates"
    with pytest.raises(CalibrationError, match="was measured on cpu, and --topology=v5e:4x4 is another"):
        found.for_chip(CHIPS["v5e"], "v5e:4x4")
    on_tpu = dataclasses.replace(found, chip=CHIPS["v5e"])
    assert on_tpu.for_chip(CHIPS["v5e"], "v5e:4x4") is CHIPS["v5e"]
    for text, message in (
        ("nothing", "is not what"),
        ('{"format": 2}', "is of format 2"),
        (path.read_text().replace("1.5", "0"), "no factor above 0"),
    ):
        path.write_text(text)
        with pytest.raises(CalibrationError, match=message):
            Calibration.read(path)


def test_a_plan_is_compiled_once(monkeypatch, tmp_path):
    made = []

    def fake(work, topology, mesh):
        made.append(work)
        return step_plan(work, topology, mesh)

    monkeypatch.setattr(compiled, "plan", fake)
    fleet = Fleet.of(settings(), SIZES["2b"], V5E)
    asked = (fleet.work(Step.TRAIN), V5E, (1, 16, 1))
    first = compiled.cached_plan(*asked, tmp_path)
    assert compiled.cached_plan(*asked, tmp_path) == first
    assert len(made) == 1
    compiled.cached_plan(dataclasses.replace(asked[0], batch=32), *asked[1:], tmp_path)
    assert len(made) == 2, "another work"
    monkeypatch.setattr(compiled, "_versions", lambda: {"jax": "next"})
    compiled.cached_plan(*asked, tmp_path)
    assert len(made) == 3, "another compiler"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v5e"], "--topology=v5e: say chip and grid"),
        (["--slots=0"], "--slots must be >= 1, got 0"),
        (["--model=3b"], "--model=3b: no such size"),
        (["--calibration=missing.json"], "--calibration=missing.json: cannot be read"),
        (["--prices=missing.json"], "--prices=missing.json: cannot be read"),
        (["--domain=my.module:load", "--topology=here"], "--weight_tasks=0 takes all tasks"),
        (["--step=train"], "Unknown command line flag 'step'"),
    ],
)
def test_refusals(capsys, arguments, message):
    assert run_command.run(["plan", f"--flagfile={FLAGFILE}", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_which_model(tmp_path, capsys):
    nameless = tmp_path / "mine.flags"
    nameless.write_text("--domain=math\n")
    assert run_command.run(["plan", f"--flagfile={nameless}"]) == 2
    assert "which model: name --model" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_on_the_devices_present(capsys, tmp_path):
    """From settings to hours, compiled here; the second time nothing is compiled."""
    rates = Calibration(dict.fromkeys(Step, 2.0), Chip("cpu", 1e11, 4 * GIB, 1e10, 1e10), "measured")
    rates.write(tmp_path / "c.json")
    arguments = [
        "plan", "--flagfile=configs/demo_searchqa.flags", f"--model={checkpoint_directory(None)}", "--topology=here",
        f"--plan_cache={tmp_path / 'cache'}", "--json", "--slots=2", "--max_len=64", "--row_len=64", "--rows=1",
        "--extend_chunk=32", "--assistant_tokens=32", f"--calibration={tmp_path / 'c.json'}",
    ]  # fmt: skip
    assert run_command.run(arguments) == 0
    first = capsys.readouterr().out.splitlines()
    found = json.loads(first[-1])
    assert found["fits"] is True
    assert found["stages"].keys() == {"rollout", "train", "swap", "checkpoint"}
    assert all(one["total"] > 0 for one in found["stages"].values())
    assert found["hours"]["total"] > 0
    assert found["hours"]["dollars"] is None
    assert found["largest"]["slots"] > 2
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert run_command.run(arguments) == 0
    assert capsys.readouterr().out.splitlines() == first


def test_the_demos_defaults_are_the_runs():
    """The plan reads the settings that the main job reads."""
    assert Fleet.of(RunConfig(), SIZES["0.8b"], V5E).work(Step.TRAIN).remat == RunConfig().model.remat
