"""The training step: one gradient whatever the split, nothing when nothing was accepted, one compilation."""

import logging
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from harness_search.contract import EndReason
from whale_jax.domains.verdict import Verdict
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.sharding import Placement, make_mesh
from whale_jax.rollout.trace import ChatTrace, Segment, Source, Trace
from whale_jax.serving.driver import Sampling
from whale_jax.training.optimizer import OptimizerSettings, make_optimizer
from whale_jax.training.packing import PackingError, ladder, pack
from whale_jax.training.rsft import AcceptRule, TrainSequence
from whale_jax.training.step import LANES, TrainingDiverged, TrainStep
from whale_jax.training.weight_step import train_on

CONFIG = Qwen35Config(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_layers=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    linear_key_heads=2,
    linear_value_heads=2,
    linear_key_dim=8,
    linear_value_dim=8,
    rope_theta=1e4,
    rotary_fraction=0.5,
)
ROW_LEN, ROWS = 32, 2
SAMPLING = Sampling(temperature=0.8, top_p=0.9, top_k=7)


@pytest.fixture(scope="module")
def params():
    """Drawn by numpy: compiling JAX's initialisation would take longer than all tests here."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: model.init_params(CONFIG, jax.random.key(0)))
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(scale=0.1, size=leaf.shape), jnp.float32), shapes)


@pytest.fixture(scope="module")
def train_step():
    """Plain gradient descent at rate 1: the change of the parameters is the gradient."""
    return TrainStep(CONFIG, optax.sgd(1.0), sampling=SAMPLING, loss_chunk=16)


def random_sequences(count, seed=0):
    rng = np.random.default_rng(seed)
    out = []
    for length in rng.integers(3, 25, count):
        mask = rng.random(length) < 0.4
        mask[0], mask[-1] = False, True
        out.append(TrainSequence(rng.integers(1, 40, length).astype(np.int32), mask, np.full(length, -1.0, np.float32)))
    return out


def packed(sequences, rows=ROWS, row_len=ROW_LEN):
    return pack(sequences, row_len=row_len, rows=rows).batches


def one_by_one(sequences):
    """Every sequence in a micro-batch of its own."""
    return [batch for sequence in sequences for batch in packed([sequence])]


def alone(sequence):
    """A sequence in a row of its own: ids, segment ids and mask, all [T]."""
    pad = (0, ROW_LEN - len(sequence.ids))
    return np.pad(sequence.ids, pad), np.pad(np.ones_like(sequence.ids), pad), np.pad(sequence.target_mask, pad)


def logits_of(params, ids, segments):
    hidden = model.forward(CONFIG, params, ids[None], segments[None], remat=False)
    return model.unembed(CONFIG, params, hidden)[0]


@jax.jit
@jax.value_and_grad
def naive_nll(params, ids, segments, mask):
    logp = jax.nn.log_softmax(logits_of(params, ids, segments))
    chosen = jnp.take_along_axis(logp[:-1], ids[1:, None], axis=1)[:, 0]
    return -jnp.sum(jnp.where(mask[1:], chosen, 0))


def naive_loss_and_gradient(params, sequences):
    """Sequence by sequence with all logits at once, and one division at the end."""
    parts = [naive_nll(params, *alone(sequence)) for sequence in sequences]
    total = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    return jax.tree.map(lambda leaf: leaf / sum(sequence.targets for sequence in sequences), total)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_loss_and_gradient_are_those_of_the_unpacked_loss_whatever_the_split(train_step, params):
    """Cases I216 and I217."""
    sequences = random_sequences(6)
    loss, grads = naive_loss_and_gradient(params, sequences)
    splits = [packed(sequences), packed(sequences[:2]) + packed(sequences[2:]), one_by_one(sequences)[::-1]]
    for batches in splits:
        state, metrics = train_step.update(train_step.init(params), batches)
        assert metrics.loss == pytest.approx(float(loss), rel=1e-6)
        assert metrics.tokens == sum(sequence.targets for sequence in sequences)
        for before, after, grad in zip(leaves(params), leaves(state.params), leaves(grads), strict=True):
            np.testing.assert_allclose(before - after, grad, atol=2e-5 * np.abs(grad).max())
        norm = np.sqrt(sum((grad**2).sum() for grad in leaves(grads)))
        assert metrics.grad_norm == pytest.approx(norm, rel=1e-4)
        assert int(state.step) == 1


def test_nothing_sampled_changes_nothing(train_step, params):
    """Case I219: no step, so no weight decay and no new version."""
    state = train_step.init(params)
    empty = [batch._replace(weights=np.zeros_like(batch.weights)) for batch in packed(random_sequences(2))]
    for batches in ([], empty):
        after, metrics = train_step.update(state, batches)
        assert after is state
        assert metrics is None
    assert all(np.isfinite(leaf).all() for leaf in leaves(state.params))


def test_an_empty_micro_batch_adds_nothing(train_step, params):
    """Cases I221 and I222."""
    batches = packed(random_sequences(3))
    empty = batches[0]._replace(weights=np.zeros_like(batches[0].weights))
    with_empty, metrics = train_step.update(train_step.init(params), [empty, *batches])
    without, expected = train_step.update(train_step.init(params), batches)
    assert metrics == expected
    for a, b in zip(leaves(with_empty), leaves(without), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit(params):
    """Several micro-batches to a lane, and fewer micro-batches than lanes."""
    steps = [
        TrainStep(CONFIG, optax.sgd(1.0), sampling=SAMPLING, loss_chunk=16, remat=False, workers=workers)
        for workers in (1, 3)
    ]
    for batches in (one_by_one(random_sequences(LANES + 2)), one_by_one(random_sequences(3))):
        (one, metrics), (two, expected) = [step.update(step.init(params), batches) for step in steps]
        assert metrics == expected
        for a, b in zip(leaves(one.params), leaves(two.params), strict=True):
            np.testing.assert_array_equal(a, b)


def test_workers_compile_once_and_their_errors_are_the_callers(params, monkeypatch):
    step = TrainStep(CONFIG, optax.sgd(1.0), sampling=SAMPLING, loss_chunk=16, remat=False, workers=LANES)
    state, _ = step.update(step.init(params), one_by_one(random_sequences(2 * LANES)))
    assert step.compilations == 5
    accumulate, calls = step._accumulate, []

    def second_fails(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return accumulate(*args)

    monkeypatch.setattr(step, "_accumulate", second_fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        step.update(state, one_by_one(random_sequences(9 * LANES)))
    assert len(calls) < 6 * LANES  # the other lanes went on no further
    assert all(np.isfinite(leaf).all() for leaf in leaves(state.params))


def test_shapes_are_compiled_once(train_step, params):
    state, _ = train_step.update(train_step.init(params), packed(random_sequences(2)))
    compiled = train_step.compilations
    for count in (1, 5, 9):
        state, _ = train_step.update(state, packed(random_sequences(count, seed=count)))
    assert train_step.compilations == compiled == 4
    assert int(state.step) == 4


def test_the_callers_parameters_survive_and_the_state_is_consumed(train_step, params):
    state = train_step.init(params)
    after, _ = train_step.update(state, packed(random_sequences(2)))
    assert all(np.isfinite(leaf).all() for leaf in leaves(params))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(after.params))


def test_same_batches_same_bits(train_step, params):
    results = [train_step.update(train_step.init(params), packed(random_sequences(5))) for _ in range(2)]
    assert results[0][1] == results[1][1]
    for a, b in zip(leaves(results[0][0]), leaves(results[1][0]), strict=True):
        np.testing.assert_array_equal(a, b)


def expected_logprob(logits, target):
    """Temperature, then top-k, then top-p, then renormalise: written the slow way."""
    scaled = np.asarray(logits, np.float64) / SAMPLING.temperature
    order = np.argsort(-scaled)[: SAMPLING.top_k]
    probs = np.exp(scaled[order] - scaled[order].max())
    probs /= probs.sum()
    kept = [i for i in range(len(order)) if probs[:i].sum() < SAMPLING.top_p]
    return scaled[target] - np.log(np.exp(scaled[order[kept]]).sum())


def test_mismatch_compares_under_the_sampling_distribution(train_step, params):
    """Zero when the sampler says what the trainer computes; otherwise the differences, on sampled tokens alone."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 40, 20).astype(np.int32)
    mask = np.array([False] * 5 + [True] * 15)
    segments = np.arange(ROW_LEN) < 20
    logits = np.asarray(jax.jit(logits_of)(params, np.pad(ids, (0, ROW_LEN - 20)), segments.astype(np.int32)))
    truth = np.array([0] + [expected_logprob(logits[t - 1], ids[t]) for t in range(1, 20)], np.float32)

    def mismatch(logprobs):
        _, metrics = train_step.update(train_step.init(params), packed([TrainSequence(ids, mask, logprobs)]))
        return metrics.mismatch

    exact = mismatch(np.where(mask, truth, np.nan).astype(np.float32))
    assert exact.max < 1e-5
    off = truth.copy()
    off[5] += 0.3
    got = mismatch(off)
    assert got.max == pytest.approx(0.3, abs=1e-4)
    assert got.mean == pytest.approx(0.3 / 15, abs=1e-4)
    assert got.mean < got.p99 < got.max


def test_unknown_sampler_log_probabilities_do_not_reach_the_loss(train_step, params):
    """Case I211."""
    known = random_sequences(3)
    unknown = [TrainSequence(item.ids, item.target_mask, np.full(len(item.ids), np.nan, np.float32)) for item in known]
    states = [train_step.update(train_step.init(params), packed(items)) for items in (known, unknown)]
    assert states[1][1].mismatch is None
    assert states[0][1].loss == states[1][1].loss
    for a, b in zip(leaves(states[0][0]), leaves(states[1][0]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_divergence_stops_before_the_step(train_step, params):
    broken = jax.tree.map(lambda leaf: leaf, params) | {"final_norm": params["final_norm"].at[0].set(jnp.nan)}
    state = train_step.init(broken)
    with pytest.raises(TrainingDiverged, match="optimizer step 0: loss nan"):
        train_step.update(state, packed(random_sequences(2)))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_a_diagnosis_names_parameters_gradients_and_micro_batches(train_step, params):
    broken = params | {"final_norm": params["final_norm"].at[0].set(jnp.nan)}
    with pytest.raises(TrainingDiverged) as caught:
        train_step.update(train_step.init(broken), packed(random_sequences(2)))
    assert "not finite before the step: final_norm" in str(caught.value)
    assert "log-probabilities not finite in micro-batches [0] of 1" in str(caught.value)


def test_a_gradient_that_explodes_stops_before_the_step(train_step, params, monkeypatch):
    monkeypatch.setattr(train_step, "_max_grad_norm", 1e-6)
    state = train_step.init(params)
    with pytest.raises(TrainingDiverged, match=r"no step was made. largest gradients \(of the sum\): \w+"):
        train_step.update(state, packed(random_sequences(2)))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    monkeypatch.setattr(train_step, "_max_grad_norm", 1e6)
    assert train_step.update(state, packed(random_sequences(2)))[1] is not None


@pytest.mark.slow
def test_after_a_warm_up_no_shape_of_the_ladder_is_compiled_and_the_largest_ran_first(params, monkeypatch):
    step = TrainStep(CONFIG, optax.sgd(1.0), sampling=SAMPLING, loss_chunk=16, remat=False)
    state = step.init(params)
    ran = []
    accumulate = step._accumulate
    monkeypatch.setattr(step, "_accumulate", lambda *args: (ran.append(args[2].tokens.shape), accumulate(*args))[1])
    shapes = ladder(ROWS, ROW_LEN, 2)
    step.warm_up(state, shapes[::-1])
    assert ran == list(shapes) == [(1, 64), (1, 32)]
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]
    state, _ = step.update(state, [])
    for leaf, kept in zip(jax.tree.leaves(state.params), before, strict=True):
        np.testing.assert_array_equal(leaf, kept)
    compiled = accumulate._cache_size()
    for count in (1, 3, 6, 9):
        batches = pack(random_sequences(count, seed=count), row_len=ROW_LEN, rows=ROWS, shapes=2).batches
        state, _ = step.update(state, batches)
    assert set(ran[2:]) == set(shapes)
    assert accumulate._cache_size() == compiled == 2


@pytest.fixture
def logged():
    """Compilations are logged, those of all threads."""
    jax.config.update("jax_log_compiles", True)
    yield
    jax.config.update("jax_log_compiles", False)


def on_a_mesh():
    return {"placement": Placement(CONFIG, make_mesh(1, 2, 1, devices=jax.devices()[:2]))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [dict, lambda: {"workers": 2}, on_a_mesh],
    ids=["one lane", "two workers", "a mesh"],
)
def test_what_was_compiled_ahead_is_compiled_once(params, caplog, logged, where):
    optimizer = make_optimizer(OptimizerSettings(learning_rate=1e-3, clip_norm=1.0))
    step = TrainStep(CONFIG, optimizer, sampling=SAMPLING, loss_chunk=16, remat=False, **where())
    batches = packed(random_sequences(6))

    def compiled():
        names = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [name for name in names if name.startswith("Finished XLA compilation of jit(_trace")]

    def compile_here():
        step.compile_warm_up([(ROWS, ROW_LEN)])
        step.compile_update([(ROWS, ROW_LEN)])

    with caplog.at_level(logging.WARNING):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(compile_here).result()
        assert {name.split("_trace_")[1].split(")")[0] for name in compiled()} >= {"accumulate", "apply", "measure"}
        state = step.init(params)
        step.warm_up(state, [(ROWS, ROW_LEN)])
        for _ in range(2):
            state, _ = step.update(state, batches)
        assert compiled() == []
        if "workers" in where():  # as a checkpoint gives it back
            state = jax.device_put(jax.tree.map(np.asarray, state), jax.local_devices()[0])
            compiled()
            step.warm_up(state, [(ROWS, ROW_LEN)])
            step.update(state, batches)
            assert compiled() == []


@pytest.mark.slow
def test_a_ladder_changes_no_gradient(train_step, params):
    """Other shapes, other rows: the same sums up to fp32 rounding."""
    sequences = random_sequences(6)
    ladder_batches = pack(sequences, row_len=16 * ROWS, rows=ROWS // 2, shapes=1).batches
    one, other = [
        train_step.update(train_step.init(params), batches)[0] for batches in (packed(sequences), ladder_batches)
    ]
    for a, b, start in zip(leaves(one.params), leaves(other.params), leaves(params), strict=True):
        np.testing.assert_allclose(a - start, b - start, atol=2e-5 * np.abs(a - start).max())


def episode(seed, *, reward: int | None = 1, length=12):
    ids = np.random.default_rng(seed).integers(1, 40, length).tolist()
    chat = (
        Segment(tuple(ids[:4]), Source.PROMPT),
        Segment(tuple(ids[4:]), Source.SAMPLED, 0, (-1.0,) * (length - 4), weight_version=0, finish="stop"),
    )
    verdict = Verdict(reward=reward, answer=None, reason="")  # type: ignore[arg-type]
    return Trace(f"task-{seed}", 0, (ChatTrace(chat),), EndReason.ANSWERED, verdict, (0, 0))


def run(train_step, params, traces, **overrides):
    settings = {"rule": AcceptRule.HONEST, "minibatch": 4, "row_len": ROW_LEN, "rows": ROWS} | overrides
    return train_on(traces, train_step.init(params), train_step, **settings)


def test_one_pass_in_mini_batches_over_the_accepted(train_step, params):
    traces = [episode(n, reward=(0, 1)[n % 3 > 0]) for n in range(9)]  # six accepted: mini-batches of 4 and 2
    state, report = run(train_step, params, traces)
    assert int(state.step) == len(report.updates) == 2
    assert report.accepted == 6
    assert [update.tokens for update in report.updates] == [32, 16]
    assert report.tokens == 48
    assert report.packed_tokens == 6 * 11
    assert report.mismatch == report.updates[0].mismatch
    assert report.grad_norm == max(update.grad_norm for update in report.updates)
    assert report.loss == pytest.approx((2 * report.updates[0].loss + report.updates[1].loss) / 3)
    only_accepted, _ = run(train_step, params, [item for item in traces if item.verdict.reward == 1])
    for a, b in zip(leaves(state), leaves(only_accepted), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_accepted_returns_the_same_state(train_step, params):
    """Case H191: no optimizer step; the schedule's patience bounds how often, and the report names such steps."""
    state = train_step.init(params)
    after, report = train_on(
        [episode(0, reward=0), episode(1, reward=None)],
        state,
        train_step,
        rule=AcceptRule.PAPER,
        minibatch=4,
        row_len=ROW_LEN,
        rows=ROWS,
    )
    assert after is state
    assert (report.accepted, report.updates, report.tokens) == (0, (), 0)
    assert report.loss is report.grad_norm is report.mismatch is report.fill_rate is None


def test_a_step_with_nothing_accepted_decays_no_weight_and_bumps_no_version(params):
    step = TrainStep(CONFIG, optax.adamw(0.1, weight_decay=0.5), sampling=SAMPLING, loss_chunk=16)
    state = step.init(params)
    after, report = run_state(step, state, [episode(0, reward=0), episode(1, reward=None)])
    assert (int(after.step), report.updates) == (0, ())
    for a, b in zip(leaves(after.params), leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)


def run_state(train_step, state, traces):
    return train_on(traces, state, train_step, rule=AcceptRule.PAPER, minibatch=4, row_len=ROW_LEN, rows=ROWS)


def test_a_chat_too_long_for_a_row_stops_before_any_training(train_step, params):
    state = train_step.init(params)
    with pytest.raises(PackingError, match="task task-9 sample 0 chat 0 needs 39"):
        train_on(
            [*(episode(n) for n in range(5)), episode(9, length=40)],
            state,
            train_step,
            rule=AcceptRule.HONEST,
            minibatch=2,
            row_len=ROW_LEN,
            rows=ROWS,
        )
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
