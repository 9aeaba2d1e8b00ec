"""watch.sh: until done, whatever happens to the TPU; and an end, with its status, where going on would be wrong."""

import pytest


def watch(cloud, *arguments, retries=3):
    flags = f"--flagfile={cloud.checkout}/configs/run.flags"
    return cloud.run("watch", flags, "--mirror=gs://lab/run", f"--retries={retries}", *arguments)


def runs(cloud):
    return (cloud.folder / "runs").read_text().splitlines()


def test_from_nothing_to_done_over_a_preemption(cloud):
    """The first machine is taken away at work; the second goes on from the first one's commit."""
    (cloud.folder / "set").mkdir()
    (cloud.folder / "set" / "a").write_text("1")
    cloud.say(lives=[{"states": ["WAITING_FOR_RESOURCES", "ACTIVE", "ACTIVE", "SUSPENDED"]}, {"states": ["ACTIVE"]}])
    cloud.jobs("work", "commit 0")
    done = watch(cloud, "--spot", f"--data=set={cloud.folder}/set", "--", "--seed=3")
    assert done.returncode == 0, done.stderr
    assert runs(cloud) == ["work: 0 commits there", "commit 0: 1 commits there"]
    assert [("--spot" in call) for call in cloud.calls("create")] == [True, True]
    assert len(cloud.calls("delete", "pod")) == 1
    assert (cloud.home() / "whale" / "data" / "set" / "a").read_text() == "1"
    assert "--seed=3" in (cloud.home() / "whale" / "job" / "flags").read_text()
    assert "2 commits" in done.stderr
    assert "the TPU stays, and costs" in done.stderr
    mirrored = cloud.folder / "buckets" / "lab" / "run"
    assert len(list((mirrored / "journal").iterdir())) == len(list((mirrored / "evals").iterdir())) == 2


def test_a_preempted_node_under_an_active_request_is_made_again(cloud):
    gone = {"states": ["ACTIVE"], "workers": 1, "type": "v5litepod-8", "node": "PREEMPTED"}
    cloud.say(queued=gone, lives=[{"states": ["ACTIVE"]}])
    cloud.jobs("0")
    assert watch(cloud).returncode == 0
    assert len(cloud.calls("delete", "pod")) == len(cloud.calls("create")) == 1


def test_it_takes_over_a_job_that_runs(cloud):
    cloud.active()
    cloud.jobs("commit 0")
    cloud.run("start", f"--flagfile={cloud.checkout}/configs/run.flags")
    assert watch(cloud).returncode == 0
    assert runs(cloud) == ["commit 0: 0 commits there"]
    assert not cloud.calls("create")


def test_when_done_it_deletes_only_what_was_confirmed(cloud):
    cloud.say(lives=[{"states": ["ACTIVE"]}])
    cloud.jobs("0")
    assert watch(cloud, "--confirm=other").returncode == 2
    assert watch(cloud, "--confirm=pod").returncode == 0
    assert cloud.queued() is None


@pytest.mark.parametrize(("status", "word"), [(2, "settings"), (4, "diverged"), (6, "disk is full"), (137, "137")])
def test_what_would_not_get_better_ends_the_watch(cloud, status, word):
    cloud.say(lives=[{"states": ["ACTIVE"]}])
    cloud.jobs(str(status), "0")
    done = watch(cloud)
    assert done.returncode == status
    assert word in done.stderr
    assert len(runs(cloud)) == 1
    assert not cloud.calls("delete")


def test_infrastructure_and_sigterm_are_tried_again(cloud):
    cloud.say(lives=[{"states": ["ACTIVE"]}])
    cloud.jobs("3", "5", "8", "9", "0")
    done = watch(cloud, retries=4)
    assert done.returncode == 0, done.stderr
    assert len(runs(cloud)) == 5


def test_a_bound_counts_failures_without_a_commit_between(cloud):
    cloud.say(lives=[{"states": ["ACTIVE"]}])
    cloud.jobs("3", "commit 3", "3", "0")
    done = watch(cloud, retries=1)
    assert done.returncode == 3
    assert "gave up after 1 retries" in done.stderr
    assert len(runs(cloud)) == 3  # one without a commit; one with, after which the count starts anew; one too many


def test_stop_ends_the_watch_too(cloud):
    cloud.active()
    cloud.jobs("work", "0")
    cloud.run("start", f"--flagfile={cloud.checkout}/configs/run.flags")
    cloud.at_work()
    cloud.run("stop")
    done = watch(cloud)
    assert done.returncode == 130
    assert "stop.sh" in done.stderr
    assert len(runs(cloud)) == 1


def test_a_tpu_that_someone_deleted_is_not_made_again(cloud):
    cloud.active()
    cloud.jobs("work")
    cloud.run("start", f"--flagfile={cloud.checkout}/configs/run.flags")
    cloud.at_work()
    taken = {"states": ["ACTIVE", "ABSENT"], "workers": 1, "type": "v5litepod-8"}
    cloud.say(queued=taken, lives=[{"states": ["ACTIVE"]}])
    done = watch(cloud)
    assert done.returncode == 130
    assert "deleted by someone else" in done.stderr
    assert not cloud.calls("create")


def test_a_worker_that_does_not_answer_for_a_while_is_waited_for(cloud):
    cloud.active()
    cloud.jobs("commit 0")
    cloud.run("start", f"--flagfile={cloud.checkout}/configs/run.flags")
    cloud.run("follow")
    cloud.say(unreachable={"0": 1})
    done = watch(cloud)
    assert done.returncode == 0, done.stderr
    assert len(runs(cloud)) == 1


def test_the_others_are_stopped_when_one_fails_and_all_start_again(cloud):
    cloud.active(workers=2)
    cloud.jobs("work", "0", worker=0)
    cloud.jobs("3", "0", worker=1)
    flags = f"--flagfile={cloud.checkout}/configs/run.flags"
    cloud.run("start", flags, "--mirror=gs://lab/run")
    cloud.at_work(0)
    done = cloud.run("watch", flags, "--mirror=gs://lab/run", "--retries=2")
    assert done.returncode == 0, done.stderr
    assert sorted(line.split(":")[0] for line in runs(cloud)) == ["0", "0", "3", "work"]


def test_capacity_that_does_not_come_is_given_up_within_the_bound(cloud):
    cloud.say(lives=[{"states": ["FAILED"]}] * 3)
    done = watch(cloud, retries=2)
    assert done.returncode == 3
    assert len(cloud.calls("create")) == len(cloud.calls("delete", "pod")) == 3
    assert cloud.queued() is None


def test_without_a_bucket_there_is_nothing_to_go_on_from(cloud):
    done = cloud.run("watch", f"--flagfile={cloud.checkout}/configs/run.flags")
    assert done.returncode == 2
    assert "--mirror" in done.stderr
    assert not cloud.calls()
