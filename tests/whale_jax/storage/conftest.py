"""A bucket on loopback, and clients that nothing else is reached with."""

import gc
import warnings

import pytest

from tests.object_store import serving


@pytest.fixture
def store(monkeypatch):
    """The server, with one bucket `lab`, as the environment's own."""
    with serving("lab") as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
        yield store
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # the client leaves connections of failed downloads to the collector
