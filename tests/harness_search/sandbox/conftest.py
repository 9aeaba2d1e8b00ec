"""Every backend this machine has runs the same tests; one that it lacks is skipped with the reason."""

import pytest

from harness_search.sandbox.backends import Backend, SandboxUnavailable, detect


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each sandbox in turn."""
    try:
        return detect(request.param)
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def any_backend() -> Backend:
    """The strongest sandbox here, where one is enough."""
    try:
        return detect("auto")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
