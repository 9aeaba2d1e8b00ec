"""What whole episodes need of the machine and the demo."""

from pathlib import Path

import pytest

import whale_jax.demo
from harness_search.sandbox.backends import Backend, SandboxUnavailable, detect
from whale_jax.qwen3_5.chat import ChatCodec


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec.from_dir(Path(whale_jax.demo.__file__).parent / "checkpoint")


@pytest.fixture(scope="module")
def backend() -> Backend:
    try:
        return detect("auto")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
