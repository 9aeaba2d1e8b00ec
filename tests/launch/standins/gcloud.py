"""A stand-in for gcloud that records every call and plays a scripted cloud; `CLOUD` names its folder.

    calls.jsonl       one argv a line, in order
    world.json        `queued`: the queued resource or null; `lives`: what the next creates bring; `errors`, `hangs`
    worker-N/         home folders of the workers, where ssh really runs its command; deleting a TPU empties them
    buckets/NAME/     gs://NAME

A life is `{"states": […], "workers": 1, "type": …}`: each look at the state takes the next one, the last one stays.
SUSPENDED ends the job of worker 0 the way that a preemption does, once the job says that it is at work.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

CLOUD = Path(os.environ["CLOUD"])
ARGUMENTS = sys.argv[1:]


def option(name, default=""):
    found = [a.split("=", 1)[1] for a in ARGUMENTS if a.startswith(f"--{name}=")]
    return found[-1] if found else default


def end(status, message=""):
    if message:
        print(message, file=sys.stderr)
    sys.exit(status)


def home(number):
    folder = CLOUD / f"worker-{number}"
    if not folder.exists():
        folder.mkdir()
        os.mkfifo(folder / "at-work")
    return folder


def preempt():
    """Waits until worker 0's job is at work, ends it with SIGTERM, and waits until it has ended."""
    job = home(0) / "whale" / "job"
    (home(0) / "at-work").read_text()
    os.kill(int((job / "supervisor").read_text()), signal.SIGTERM)
    with (job / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def describe(world, lock):
    queued = world["queued"]
    if queued is None:
        end(1, "ERROR: (gcloud.compute.tpus.queued-resources.describe) NOT_FOUND: Resource was not found")
    form = option("format")
    if form == "value(state.state)":
        state = queued["states"][0]
        if len(queued["states"]) > 1:
            queued["states"].pop(0)
        if state == "INTERRUPT":  # somebody ends create.sh, by the process id that it left
            script = int((CLOUD / "script").read_text())
            os.kill(script, signal.SIGTERM)
        if state == "ABSENT":  # somebody deleted it
            world["queued"] = None
            save(world)
            end(1, "ERROR: NOT_FOUND: Resource was not found")
        if state == "SUSPENDED" and queued.pop("busy", False):
            save(world)
            fcntl.flock(lock, fcntl.LOCK_UN)  # the job may ask the cloud for something before it ends
            preempt()
            fcntl.flock(lock, fcntl.LOCK_EX)
        print(state)
    elif "labels.whale-request" in form:
        print(queued.get("label", ""))
    elif form.startswith("yaml(state"):
        print(
            f"state:\n  state: {queued['states'][0]}\n  failedData: {{error: {{message: {queued.get('reason', '')}}}}}"
        )
    else:
        print(f"name: {ARGUMENTS[4]}")


def create(world, _):
    if world["queued"] is not None:
        end(1, "ERROR: ALREADY_EXISTS")
    life = world["lives"].pop(0)
    if life.get("refused"):
        end(1, life["refused"])
    if life.get("cut_off"):  # the request went through, and the answer was lost
        life.setdefault("label", option("labels").split("=", 1)[1])
    life.setdefault("type", option("accelerator-type"))
    life.setdefault("workers", 1)
    life["busy"] = "SUSPENDED" in life["states"] and "ACTIVE" in life["states"]
    world["queued"] = life
    if life.get("cut_off"):
        save(world)
        end(1, "ERROR: connection reset")


def delete(world, _):
    if world["queued"] is None:
        end(1, "ERROR: NOT_FOUND")
    world["queued"] = None
    for folder in CLOUD.glob("worker-*"):
        shutil.rmtree(folder)


def node(world):
    queued = world["queued"]
    if queued is None:
        end(1, "ERROR: NOT_FOUND")
    form = option("format")
    if form == "value(networkEndpoints.ipAddress)":
        print("\n".join(f"10.0.0.{i}" for i in range(queued["workers"])))
    elif form == "value(state)":
        print(queued.get("node", "READY"))
    else:
        print(queued["type"])


def reach(world):
    number = int(option("worker", "0"))
    left = world.get("unreachable", {}).get(str(number), 0)
    if left:
        world["unreachable"][str(number)] = left - 1
        save(world)
        end(255, "ssh: connect to host: Connection timed out")
    home(number)


def ssh():
    number = int(option("worker", "0"))
    folder = home(number)
    environment = {**os.environ, "HOME": str(folder), "WORKER": str(number)}
    os.chdir(folder)
    os.execvpe("sh", ["sh", "-c", option("command")], environment)


def scp():
    source, target = Path(ARGUMENTS[4]), ARGUMENTS[5].split(":", 1)[1]
    destination = home(int(option("worker", "0"))) / target
    if "--recurse" in ARGUMENTS:
        shutil.copytree(source, destination)
    else:
        shutil.copy(source, destination)
    spoil = CLOUD / "spoil"  # one file that arrives otherwise than it was sent
    if spoil.exists() and "--recurse" in ARGUMENTS:
        (destination / spoil.read_text()).write_bytes(b"?")
        spoil.unlink()


def place(name):
    return CLOUD / "buckets" / name.removeprefix("gs://") if name.startswith("gs://") else Path(name)


def objects(url):
    root = place(url.removesuffix("/**"))
    return sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else []


def storage(world):
    action = ARGUMENTS[1]
    if world.get("forbidden"):
        end(1, "ERROR: (gcloud.storage) HTTPError 403: does not have storage.objects.list access")
    if action == "ls":
        if not (found := objects(ARGUMENTS[2])):
            end(1, "ERROR: (gcloud.storage.ls) One or more URLs matched no objects.")
        print("\n".join(map(str, found)))
    elif action == "objects":
        bucket = CLOUD / "buckets" / ARGUMENTS[3].removeprefix("gs://").split("/")[0]
        for path in objects(ARGUMENTS[3]):
            print(f"{path.stat().st_size}\t{path.relative_to(bucket)}")
    elif action == "rsync":
        source, target = (place(a) for a in ARGUMENTS[2:] if not a.startswith("--"))
        excluded = re.compile(option("exclude") or r"(?!)")
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            if path.is_file() and not excluded.match(str(name)):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / name)
    else:
        end(2, f"the stand-in knows no storage {action}")


def save(world):
    (CLOUD / "world.json").write_text(json.dumps(world))


def main():
    with (CLOUD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (CLOUD / "calls.jsonl").open("a") as calls:
            calls.write(json.dumps(ARGUMENTS) + "\n")
        world = json.loads((CLOUD / "world.json").read_text())
        command = " ".join(ARGUMENTS[2:4]) if ARGUMENTS[0] == "compute" else "storage"
        if command in world.get("errors", {}):
            end(1, world["errors"][command])
        if command in world.get("hangs", []):
            fcntl.flock(lock, fcntl.LOCK_UN)
            signal.pause()
        if command.startswith("queued-resources"):
            {"describe": describe, "create": create, "delete": delete}[ARGUMENTS[3]](world, lock)
            save(world)
            return
        if command == "tpu-vm describe":
            node(world)
            return
        if command == "tpu-vm ssh":
            reach(world)
    # What takes its time runs without the lock, several workers at once; it changes nothing in world.json.
    if command == "tpu-vm ssh":
        ssh()
    elif command == "tpu-vm scp":
        scp()
    else:
        storage(world)


main()
