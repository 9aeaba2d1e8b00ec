"""create.sh and delete.sh: what is asked for, what is waited for, what is cleaned up, and what is never touched."""

import pytest


def test_on_demand_waits_until_it_is_active_and_says_the_states(cloud):
    cloud.say(lives=[{"states": ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]}])
    done = cloud.run("create")
    assert done.returncode == 0, done.stderr
    (call,) = cloud.calls("create")
    assert call[:5] == ["compute", "tpus", "queued-resources", "create", "pod"]
    wanted = {"--node-id=pod", "--accelerator-type=v5litepod-8", "--runtime-version=v2-alpha-tpuv5-lite", "--async"}
    assert wanted | {"--zone=us-west4-a", "--project=lab", "--quiet"} <= set(call)
    assert not {"--spot", "--reserved"} & set(call)
    assert [word in done.stderr for word in ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")] == [True] * 3
    assert not cloud.calls("delete")


def test_spot_and_the_rest_of_the_settings_reach_gcloud(cloud):
    cloud.say(lives=[{"states": ["ACTIVE"]}])
    more = (
        "--spot",
        "--internal_ips",
        "--network=n",
        "--subnetwork=s",
        "--service_account=a@b",
        "--runtime_version=me",
    )
    assert cloud.run("create", *more).returncode == 0
    (call,) = cloud.calls("create")
    assert {flag.replace("_", "-") for flag in more} <= set(call)


@pytest.mark.parametrize(
    ("states", "status", "word"),
    [
        (["PROVISIONING", "FAILED"], 10, "FAILED"),
        (["ACCEPTED", "SUSPENDED"], 11, "SUSPENDED"),
        (["WAITING_FOR_RESOURCES"], 12, "WAITING_FOR_RESOURCES"),
    ],
)
def test_a_request_that_comes_to_nothing_is_deleted_again_with_its_reason(cloud, states, status, word):
    cloud.say(lives=[{"states": states, "reason": "no capacity in the zone"}])
    done = cloud.run("create", "--wait_polls=4")
    assert done.returncode == status, done.stderr
    assert word in done.stderr
    assert "no capacity in the zone" in done.stderr
    assert len(cloud.calls("delete", "pod")) == 1
    assert cloud.queued() is None


def test_running_it_twice_asks_once(cloud):
    cloud.say(lives=[{"states": ["ACTIVE"]}])
    assert cloud.run("create").returncode == 0
    again = cloud.run("create")
    assert again.returncode == 0
    assert "already" in again.stderr
    assert len(cloud.calls("create")) == 1


def test_one_that_was_there_is_waited_for_and_not_deleted_when_the_wait_ends(cloud):
    cloud.say(queued={"states": ["PROVISIONING"], "workers": 1, "type": "v5litepod-8"})
    done = cloud.run("create", "--wait_polls=2")
    assert done.returncode == 12
    assert "stays" in done.stderr
    assert not cloud.calls("create")
    assert not cloud.calls("delete")


def test_one_that_was_there_and_failed_is_left_to_its_owner(cloud):
    cloud.say(queued={"states": ["FAILED"], "workers": 1, "type": "v5litepod-8"})
    done = cloud.run("create")
    assert done.returncode == 2
    assert "--confirm=pod" in done.stderr
    assert not cloud.calls("create")
    assert not cloud.calls("delete")


def test_another_accelerator_under_the_same_name_is_refused(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 1, "type": "v6e-8"})
    done = cloud.run("create")
    assert done.returncode == 2
    assert "v6e-8" in done.stderr


def test_a_quota_error_is_shown_and_leaves_nothing(cloud):
    cloud.say(lives=[{"refused": "ERROR: RESOURCE_EXHAUSTED: Quota limit 'TPUV5s' has been exceeded"}])
    done = cloud.run("create")
    assert done.returncode == 3
    assert "Quota limit" in done.stderr
    assert "docs/quota" in done.stderr
    assert not cloud.calls("delete")


def test_a_request_whose_answer_was_lost_is_known_by_its_label_and_deleted(cloud):
    cloud.say(lives=[{"states": ["PROVISIONING"], "cut_off": True}])
    assert cloud.run("create").returncode == 3
    assert len(cloud.calls("delete", "pod")) == 1


def test_one_that_somebody_else_made_meanwhile_is_not_deleted(cloud):
    cloud.say(lives=[{"states": ["PROVISIONING"], "cut_off": True, "label": "theirs"}])
    assert cloud.run("create").returncode == 3
    assert not cloud.calls("delete")


def test_interrupted_it_deletes_what_it_had_asked_for(cloud):
    cloud.say(lives=[{"states": ["WAITING_FOR_RESOURCES", "INTERRUPT", "PROVISIONING"]}])
    done = cloud.run("create")
    assert done.returncode == 143
    assert "terminated" in done.stderr
    assert cloud.queued() is None


def test_a_gcloud_that_does_not_answer_is_bounded(cloud):
    cloud.say(hangs=["queued-resources describe"])
    done = cloud.run("create", "--call_seconds=1")
    assert done.returncode == 3
    assert "--call_seconds" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--spot", "--reserved"], "exclude each other"),
        (["--accelerator_type=v9-8"], "--runtime_version"),
        (["--nonsense=1"], "unknown setting --nonsense"),
        (["--poll_seconds=soon"], "whole number"),
        (["--name=Pod"], "--name=Pod"),
        (["--data=x"], "NAME=SOURCE"),
        (["pod"], "expected --setting=value"),
    ],
)
def test_bad_settings_are_named_before_anything_is_asked(cloud, arguments, message):
    done = cloud.run("create", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not cloud.calls()


def test_missing_settings_and_settings_of_a_file(cloud):
    done = cloud.run("create", settings=("--name=pod",))
    assert done.returncode == 2
    assert "--zone is missing" in done.stderr
    file = cloud.folder / "my.flags"
    file.write_text("# mine\n--name=pod\n--zone=z\n--accelerator_type=v6e-8\n--spot\n--poll_seconds=0\n")
    cloud.say(lives=[{"states": ["ACTIVE"]}])
    done = cloud.run("create", "--zone=other", settings=(f"--settings={file}",))
    assert done.returncode == 0, done.stderr
    (call,) = cloud.calls("create")
    assert {"--zone=other", "--spot", "--runtime-version=v2-alpha-tpuv6e"} <= set(call)
    file.write_text("--name=pod\nzone=z\n")
    assert f"{file}:2" in cloud.run("create", settings=(f"--settings={file}",)).stderr


def test_delete_lists_and_deletes_nothing_without_the_name_twice(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 1, "type": "v5litepod-8"})
    done = cloud.run("delete")
    assert done.returncode == 2
    assert "name: pod" in done.stderr
    assert cloud.run("delete", "--confirm=other").returncode == 2
    assert not cloud.calls("delete")


def test_delete_deletes_that_one_and_is_content_when_it_is_gone(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 1, "type": "v5litepod-8"})
    done = cloud.run("delete", "--confirm=pod")
    assert done.returncode == 0, done.stderr
    (call,) = cloud.calls("delete")
    assert call[3:6] == ["delete", "pod", "--force"]
    assert cloud.run("delete", "--confirm=pod").returncode == 0
    assert len(cloud.calls("delete")) == 1


def test_delete_does_nothing_when_the_state_cannot_be_had(cloud):
    cloud.say(errors={"queued-resources describe": "ERROR: PERMISSION_DENIED"})
    done = cloud.run("delete", "--confirm=pod")
    assert done.returncode == 3
    assert "PERMISSION_DENIED" in done.stderr
    assert not cloud.calls("delete")
