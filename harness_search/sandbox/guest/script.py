"""A script over a read-only folder: locks itself in, runs the text, and is gone.

The folder is the working directory. What the script prints goes to the descriptors it was started with.
"""

import contextlib
import importlib
import os
import sys
import traceback
from typing import Any

from harness_search.sandbox.guest import filters, kernel
from harness_search.sandbox.guest.loading import import_allowed

LOCK_IN_FAILED = 70
"""Exit status of a script that did not run because its cage could not be closed."""

_ALSO_OFFERED = ("glob", "pathlib", "os", "io", "sys", "fnmatch", "zlib", "linecache")
_FILE_NAME = "script.py"


def serve(control_fd: int, job: dict[str, Any]) -> None:
    """Runs `job["code"]`. `job`: code, directory, cage (see `backends.Cage`), limits. `control_fd` is not used."""
    os.close(control_fd)
    os.chdir(job["directory"])  # before the drop: the folders above it may be closed to the new user
    import_allowed()
    for name in _ALSO_OFFERED:
        importlib.import_module(name)
    try:
        _lock_in(job["cage"], job["limits"])
    except OSError as error:
        print(f"cannot lock itself in: {error}", file=sys.stderr, flush=True)
        os._exit(LOCK_IN_FAILED)
    os._exit(_run(job["code"]))


def _lock_in(cage: dict[str, Any], limits: dict[str, int]) -> None:
    if cage["unshare_network"]:
        kernel.unshare_network()
    if cage["drop"]:
        kernel.drop_privileges(cage["uid"])
    kernel.die_with_parent()
    kernel.limit(limits)
    if cage["landlock"]:
        kernel.landlock_deny_all(readable=".")
    if cage["seccomp"]:
        kernel.Seccomp(filters.READER).install()


def _run(code: str) -> int:
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    status = 0
    try:
        exec(compile(code, _FILE_NAME, "exec", dont_inherit=True), namespace)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:  # whatever a script raises is shown to whoever wrote it
        frames = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.filename == _FILE_NAME]
        with contextlib.suppress(Exception):  # a hostile exception class may break while it is described
            lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
            print("".join(lines), file=sys.stderr)
        status = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    return status & 0xFF
