"""google-jetstream's rough edges stay inside its module; its `Engine` interface works on its own."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.serving import jetstream, jetstream_package
from whale_jax.serving.driver import ContextOverflow, DriverStopped, Sampling, ServingError, make_driver
from whale_jax.serving.engine import Engine
from whale_jax.serving.jetstream_driver import JetStreamDriver

_IMPORT_PROBE = """
import logging, sys
root = logging.getLogger()
before = root.level, list(root.handlers)
import whale_jax.serving.jetstream_server
assert (root.level, root.handlers) == before, "root logger changed"
import logging
logging.getLogger("jetstream").info("quiet")
assert root.handlers == before[1]
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"seqio", "tensorflow", "benchmarks", "tiktoken"}, loaded
"""


def test_importing_it_changes_nothing_else() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", _IMPORT_PROBE], check=True, timeout=240)


def test_without_the_package_the_error_says_what_to_do(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServingError, match="pip install"):
        make_driver("jetstream", engine)


def test_deleting_a_pytree_frees_its_arrays() -> None:
    array = jnp.ones(3)
    jetstream_package.orchestrator.delete_pytree({"a": array, "b": 1})
    assert array.is_deleted()


def greedy_tokens(adapter: jetstream.JetStreamEngine, prefix: jetstream.Prefix, slot: int, count: int) -> list[int]:
    """Tokens as a caller of the package's interface gets them."""
    params, state = adapter.load_params(), adapter.init_decode_state()
    state = adapter.insert(prefix, state, slot=slot)
    tokens: list[int] = []
    while len(tokens) < count:
        state, result = adapter.generate(params, state)
        data = result.convert_to_numpy().get_result_at_slot(slot)
        assert data.lengths[0] >= len(tokens)
        tokens += data.tokens[0][data.valid[0] == 1].tolist()
        if not data.valid[0].all():
            break
    return tokens[:count]


def test_the_engine_interface_samples_what_the_scheduler_samples(engine: Engine, params: Any) -> None:
    engine.set_weights(params, 0)
    first, second, greedy = [10, 11, 12] * 4, [30, 31], Sampling(temperature=0.0)
    with make_driver("scheduler", engine) as driver:
        expected = asyncio.run(driver.generate(driver.open(), first, max_tokens=8, sampling=greedy, key=(0, 0)))
    adapter = jetstream.JetStreamEngine(engine)
    padded = np.array(first + [0] * 4, np.int32)
    prefix = adapter.prefill(params=adapter.load_params(), padded_tokens=padded, true_length=len(first))
    assert greedy_tokens(adapter, prefix, slot=3, count=8) == list(expected.ids)
    longer = adapter.prefill(
        params=adapter.load_params(), existing_prefix=prefix, padded_tokens=np.array(second), true_length=2
    )
    assert longer.extensions == (tuple(first), tuple(second))
    # The same prefix may be inserted again, in other slots and over a sequence that has not ended.
    assert greedy_tokens(adapter, longer, slot=3, count=6) == greedy_tokens(adapter, longer, slot=0, count=6)


def test_prefill_checks_the_true_length(engine: Engine) -> None:
    adapter = jetstream.JetStreamEngine(engine)
    tokens = np.full(128, 10, np.int32)
    with pytest.raises(ContextOverflow):
        adapter.prefill(params=None, padded_tokens=tokens, true_length=engine.max_len)
    assert adapter.prefill(params=None, padded_tokens=tokens, true_length=3).extensions == ((10, 10, 10),)
    assert adapter.max_prefill_length == 64


def test_its_threads_end_with_the_driver(engine: Engine) -> None:
    with make_driver("jetstream", engine):
        mine = [thread for thread in threading.enumerate() if thread.name.startswith("jetstream-")]
        assert len(mine) == 4
        assert all(thread.daemon for thread in mine)
    assert not any(thread.is_alive() for thread in mine)


@pytest.mark.parametrize("place", ["prefill", "generate", "detokenize"])
def test_an_exception_in_one_of_its_threads_fails_requests_and_not_the_process(
    engine: Engine, params: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    engine.set_weights(params, 0)

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"no {place}")

    async def ask(driver: JetStreamDriver) -> Any:
        return await driver.generate(driver.open(), [10], max_tokens=9, sampling=Sampling(), key=(0, 1))

    async def ask_all(driver: JetStreamDriver) -> list[Any]:
        return await asyncio.gather(*(ask(driver) for _ in range(8)), return_exceptions=True)

    with JetStreamDriver(engine) as driver:
        expected = asyncio.run(ask(driver))
        with monkeypatch.context() as patch:
            if place == "detokenize":
                patch.setattr(jetstream_package.token_utils, "process_result_tokens", broken)
            else:
                patch.setattr(jetstream.JetStreamEngine, place, broken)
            errors = asyncio.run(ask_all(driver))
            assert all(isinstance(error, DriverStopped) and f"no {place}" in str(error) for error in errors)
            assert not driver.live
            driver.stop()
        driver.start()
        assert driver.live
        assert asyncio.run(ask(driver)) == expected
    assert f"thread jetstream-{place}-0 failed" in caplog.text


def test_a_caller_whose_loop_has_ended_does_not_hurt_the_others(engine: Engine, params: Any) -> None:
    engine.set_weights(params, 0)
    with make_driver("jetstream", engine) as driver:

        async def ask() -> Any:
            return await driver.generate(driver.open(), [10], max_tokens=20, sampling=Sampling(), key=(0, 1))

        async def leave() -> None:
            asyncio.get_running_loop().create_task(ask())
            await asyncio.sleep(0)

        asyncio.run(leave())
        assert asyncio.run(ask()).ids


def test_interface_properties(engine: Engine) -> None:
    adapter = jetstream.JetStreamEngine(engine)
    assert adapter.max_concurrent_decodes == engine.slots
    assert adapter.samples_per_slot == 1
    assert adapter.mesh.size == 1
    assert adapter.colocated_cpus is None
    assert adapter.get_prefix_destination_sharding() is None
    assert adapter.build_tokenizer(adapter.get_tokenizer()).stop_tokens == set()
    assert logging.getLogger().level == logging.WARNING
    assert isinstance(jax.tree.leaves(jetstream.Prefix(((1,),)))[0], jetstream.Prefix)
