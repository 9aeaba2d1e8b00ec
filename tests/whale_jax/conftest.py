"""What the tests of whole runs share."""

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Compiled programs, kept for all runs of a test session."""
    return tmp_path_factory.mktemp("compiled")
