"""What processes of one run may not differ in is named: settings, inputs, versions, code."""

import dataclasses

from whale_jax.config import RunConfig
from whale_jax.hosts.agree import compared, versions
from whale_jax.rundir import Inputs

INPUTS = Inputs(data="d" * 64, harness="h", weights="w", tokenizer="t", template="c")


def record(config=None, inputs=INPUTS, **environment):
    return {
        "settings": (config or RunConfig()).values(),
        "inputs": dataclasses.asdict(inputs),
        "environment": {"jax": "1", "the code": "abc", **environment},
    }


def differences(theirs):
    return compared(theirs, RunConfig(), INPUTS, {"jax": "1", "the code": "abc"})


def test_the_same_is_the_same_wherever_it_lies():
    elsewhere = {"run_dir": "/other", "task_dir": None, "checkpoint": "/a/b", "keep_last": 7}
    assert differences(record(RunConfig.from_values(elsewhere))) == []


def test_settings_inputs_versions_and_code_are_named():
    other = RunConfig.from_values({"seed": 1, "decode_steps": 4})
    found = differences(record(other, dataclasses.replace(INPUTS, data="e" * 64), jax="2", **{"the code": "abd"}))
    assert found == [
        "--seed is 1 there, 0 here",
        "--decode_steps is 4 there, 8 here",
        "the data differs (SHA-256 eeeeeeeeeeee there, dddddddddddd here)",
        "jax is 2 there, 1 here",
        "the code is abd there, abc here",
    ]


def test_versions_hold_this_packages_code_and_no_processor():
    found = versions()
    assert {"jax", "python", "the code", "devices"} <= set(found)
    assert "cpus" not in found
