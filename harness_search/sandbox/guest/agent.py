"""First code of an agent's sandbox: gives up every privilege, then becomes the agent.

Where a way out is given (`job["egress"]`, a Unix socket), a second process carries bytes between that socket and a port
of the sandbox's own loopback, which the agent's environment names as its HTTP proxy.
"""

import contextlib
import os
import signal
import socket
import threading
from typing import Any

from harness_search.sandbox.guest import kernel

_PROXY_NAMES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_PIECE = 1 << 16
NOT_STARTED = 127
"""Exit status when the agent's program cannot be started, as a shell's."""


def serve(control_fd: int, job: dict[str, Any]) -> None:
    """Does not return. `job`: argv, environment, directory, uid, limits, egress. `control_fd` is not used."""
    os.close(control_fd)
    environment = dict(job["environment"])
    if job["egress"] is not None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment |= dict.fromkeys(_PROXY_NAMES, proxy)
        if os.fork() == 0:
            kernel.drop_privileges(job["uid"])
            _forward(listener, job["egress"])
        listener.close()
    os.chdir(job["directory"])
    kernel.drop_privileges(job["uid"])
    kernel.limit(job["limits"])
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(job["argv"][0], job["argv"], environment)
    except OSError as error:
        os.write(2, f"cannot start {job['argv'][0]}: {error.strerror}\n".encode())
        os._exit(NOT_STARTED)


def _forward(listener: socket.socket, egress: str) -> None:
    while True:
        ours, _ = listener.accept()
        theirs = socket.socket(socket.AF_UNIX)
        try:
            theirs.connect(egress)
        except OSError:
            ours.close()
            theirs.close()
            continue
        for source, target in ((ours, theirs), (theirs, ours)):
            threading.Thread(target=_carry, args=(source, target), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
