"""What a worker has: `python check.py HOSTS` prints `python|devices|sandbox|verdict`. Exit status 0 when it is fit.

Devices are fit when JAX sees an accelerator (WHALE_CHECK_PLATFORM names another platform) and, on several hosts, all
of them see the same slice; the sandbox, when `harness_search.sandbox` finds bubblewrap and nothing escapes.
"""

import json
import os
import platform
import subprocess
import sys


def devices(hosts: int) -> tuple[str, str]:
    """What JAX sees, and what is wrong with it ('' when nothing is)."""
    import jax

    wanted = os.environ.get("WHALE_CHECK_PLATFORM", "tpu")
    try:
        if hosts > 1:
            jax.distributed.initialize()
        found = jax.local_devices()
    except (RuntimeError, ValueError) as error:
        return "none", f"JAX: {str(error).splitlines()[0]}"
    seen = f"{len(found)} {found[0].platform} of {jax.device_count()}"
    if found[0].platform != wanted:
        return seen, f"JAX sees {found[0].platform}, not {wanted}"
    if jax.process_count() != hosts:
        return seen, f"JAX sees {jax.process_count()} of {hosts} hosts"
    return seen, ""


def sandbox() -> tuple[str, str]:
    """The sandbox's verdict on this machine, and what is wrong with it ('' when nothing is)."""
    command = [sys.executable, "-m", "harness_search.sandbox", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    try:
        report = json.loads(result.stdout)
    except json.JSONDecodeError:
        return "no answer", f"sandbox: exit status {result.returncode}"
    backend, escapes = report["backend"], report["escapes"]
    if backend is None:
        return "none", f"sandbox: {report['error'].splitlines()[0]}"
    seen = f"{backend}, {len(report['attempts'])} attempts, {len(escapes) or 'none'} escaped"
    if escapes:
        return seen, f"sandbox: escaped by {', '.join(map(str, escapes))}"
    return seen, "" if backend == "bubblewrap" else f"sandbox: {backend} instead of bubblewrap"


def main() -> int:
    # The sandbox first: it is to be looked at before JAX starts threads and takes the devices.
    caged, sandbox_wrong = sandbox()
    seen, devices_wrong = devices(int(sys.argv[1]))
    wrong = "; ".join(filter(None, (devices_wrong, sandbox_wrong)))
    cells = (platform.python_version(), seen, caged, wrong or "fit")
    print("|".join(cell.replace("|", "/") for cell in cells), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
