"""Memory as a run gets it from `launch/local.sh`: in huge pages.

On a CPU, XLA takes the memory of a program's inner arrays anew for every call and gives it back. In pages of 4 kB a
sixth of the rollouts' time went into that.
"""

import os
import platform
import sys

TUNABLE = "glibc.malloc.hugetlb"
"""What glibc reads at a process's start, from 2.35 on: 1 asks for huge pages where the kernel gives them on request."""


def start_again_with_huge_pages() -> None:
    """Replaces this process by the same command with `TUNABLE` set; returns where it is set or unknown to the libc."""
    set_already = os.environ.get("GLIBC_TUNABLES", "")
    if TUNABLE in set_already or not _knows_it():
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (set_already, f"{TUNABLE}=1")))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _knows_it() -> bool:
    name, version = platform.libc_ver()
    return name == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 35)
