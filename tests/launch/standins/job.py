"""Stands in for whale_jax.main: does what the next line of $CLOUD/jobs-WORKER says, an exit status or `work`.

`work` commits one journal entry more than the run directory has, says so, and ends with 5 when SIGTERM comes; `deaf`
does not mind SIGTERM; a number commits nothing and ends; `commit N` commits, and ends with N.
"""

import os
import signal
import sys
from pathlib import Path

cloud = Path(os.environ["CLOUD"])
script = cloud / f"jobs-{os.environ.get('WORKER', '0')}"
todo, *rest = script.read_text().splitlines()
script.write_text("\n".join(rest))
flags = Path(next(a for a in sys.argv if a.startswith("--flagfile=")).split("=", 1)[1]).read_text()
with (cloud / "runs").open("a") as runs:
    journal = Path("run/journal")
    runs.write(f"{todo}: {len(list(journal.glob('*.json')))} commits there\n")
print(f"the job does {todo!r} with\n{flags}", flush=True)


def commit():
    evidence = Path("run/evals")
    evidence.mkdir(parents=True, exist_ok=True)
    journal.mkdir(parents=True, exist_ok=True)
    name = f"{len(list(journal.glob('*.json'))):06d}"
    (evidence / f"{name}.json").write_text("{}")
    (journal / f"{name}.json").write_text("{}")


if todo in ("work", "deaf"):
    handler = signal.SIG_IGN if todo == "deaf" else lambda *_: sys.exit(5)
    signal.signal(signal.SIGTERM, handler)
    commit()
    with open(Path.home() / "at-work", "w") as pipe:
        pipe.write("at work")
    while True:
        signal.pause()
if todo.startswith("commit "):
    commit()
sys.exit(int(todo.split()[-1]))
