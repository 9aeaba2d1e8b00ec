"""start.sh, follow.sh, status.sh, stop.sh: one job, the same on all workers, that outlives its connection."""


def start(cloud, *arguments):
    return cloud.run("start", f"--flagfile={cloud.checkout}/configs/run.flags", *arguments)


def test_the_same_flagfile_starts_on_all_workers(cloud):
    cloud.active(workers=2)
    for worker in (0, 1):
        cloud.jobs("work", worker=worker)
    done = start(cloud, "--", "--checkpoint=data/model", "--thinking", "--judge_model=it's")
    assert done.returncode == 0, done.stderr
    flags = [(cloud.home(worker) / "whale" / "job" / "flags").read_text() for worker in (0, 1)]
    wanted = ["--checkpoint=data/model", "--thinking", "--judge_model=it's", "--run_dir=run", "--num_processes=2"]
    assert flags[0] == flags[1]
    assert flags[0].splitlines() == ["# a run", "--domain=searchqa", "", *wanted]
    cloud.at_work(0)
    cloud.at_work(1)
    assert cloud.run("status").stdout.count("running commits=1") == 2


def test_a_worker_that_was_not_set_up_is_named(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 1, "type": "v5litepod-8"})
    done = start(cloud)
    assert done.returncode == 2
    assert "worker 0 is not set up" in done.stderr


def test_a_second_start_is_refused_and_disturbs_nothing(cloud):
    cloud.active()
    cloud.jobs("work", "0")
    assert start(cloud).returncode == 0
    cloud.at_work()
    again = start(cloud, "--", "--seed=2")
    assert again.returncode == 2
    assert "runs already on worker 0" in again.stderr
    assert "--seed" not in (cloud.home() / "whale" / "job" / "flags").read_text()
    setup = cloud.run("setup")
    assert setup.returncode == 3
    assert "a job is running" in setup.stderr


def test_a_start_that_fails_on_one_worker_is_taken_back_on_the_others(cloud):
    cloud.active(workers=2)
    cloud.jobs("work", worker=0)
    (cloud.home(1) / "whale" / "job").write_text("no folder")  # so start fails there
    done = start(cloud)
    assert done.returncode == 3
    assert "not started: worker 1 of 2" in done.stderr
    assert "running" not in cloud.run("status").stdout


def test_stop_ends_it_with_sigterm_and_says_so(cloud):
    cloud.active()
    cloud.jobs("work")
    start(cloud)
    cloud.at_work()
    assert cloud.run("stop").returncode == 0
    assert "stopped 5 commits=1" in cloud.run("status").stdout
    assert cloud.run("stop").returncode == 0  # twice is safe


def test_a_job_deaf_to_sigterm_is_killed(cloud):
    cloud.active()
    cloud.jobs("deaf")
    start(cloud)
    cloud.at_work()
    assert cloud.run("stop", "--grace_seconds=1").returncode == 0
    assert "running" not in cloud.run("status").stdout


def test_follow_shows_the_log_until_the_job_ends(cloud):
    cloud.active()
    cloud.jobs("commit 0")
    start(cloud)
    done = cloud.run("follow")
    assert done.returncode == 0, done.stderr
    # what is printed depends on whether the job had ended; the log itself does not
    log = (cloud.home() / "whale" / "job" / "log").read_text()
    assert "--domain=searchqa" in log
    ended = cloud.run("follow", "--lines=1")
    assert ended.stdout == "worker.sh: the job ended with exit status 0\n"
    assert cloud.run("follow", "--worker=5").returncode == 3


def test_a_job_whose_machine_went_down_is_lost(cloud):
    cloud.active()
    cloud.jobs("0")
    start(cloud)
    cloud.run("follow")
    (cloud.home() / "whale" / "job" / "status").unlink()
    assert "worker 0: lost" in cloud.run("status").stdout


def test_flags_that_no_flagfile_can_hold_are_refused(cloud):
    for flag, message in (("x", "after --"), ("--a=1\n2", "line break"), ("--run_dir=r", "before --")):
        done = start(cloud, "--", flag)
        assert done.returncode == 2
        assert message in done.stderr
    done = cloud.run("start", "--flagfile=none.flags")
    assert done.returncode == 2
    assert "none.flags cannot be read" in done.stderr


def test_of_several_hosts_the_first_one_has_the_run_and_its_mirror(cloud):
    cloud.active(workers=2)
    for worker in (0, 1):
        cloud.jobs("0", worker=worker)
    assert start(cloud, "--mirror=gs://lab/run").returncode == 0
    starts = [(word, call) for call in cloud.calls("ssh") for word in call if "worker.sh start" in word]
    copied_to = {worker: word for word, call in starts for worker in (0, 1) if f"--worker={worker}" in call}
    assert "gs://lab/run" in copied_to[0]
    assert "gs://" not in copied_to[1]


def test_a_mirror_that_cannot_be_read_does_not_start_the_run_over(cloud):
    cloud.active()
    cloud.jobs("0")
    cloud.say(forbidden=True)
    assert start(cloud, "--mirror=gs://lab/run").returncode == 0
    cloud.run("follow")
    assert "ended 3" in cloud.run("status").stdout
    assert not (cloud.folder / "runs").exists()
