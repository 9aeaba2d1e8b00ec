"""The job files of other schedulers: the fields that those require, and commands that exist."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_gke_job_asks_for_one_host_of_a_slice():
    job = load("launch/gke/job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy is only allowed with it
    selector = pod["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
    rows, columns = map(int, selector["cloud.google.com/gke-tpu-topology"].split("x"))
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"google.com/tpu": rows * columns}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    rules = job["spec"]["podFailurePolicy"]["rules"]
    by_action = [(rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in rules]
    assert by_action == [("Ignore", None), ("Ignore", [5]), ("FailJob", [2, 4, 6, 130])]
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {container["name"]}


def test_skypilot_job_asks_for_one_host_and_goes_on_after_preemption():
    job = load("launch/sky/job.yaml")
    resources = job["resources"]
    assert resources["accelerators"] == "tpu-v5litepod-8"
    assert resources["accelerator_args"] == {"runtime_version": "v2-alpha-tpuv5-lite"}
    assert resources["use_spot"] is True
    assert resources["job_recovery"]["recover_on_exit_codes"] == [3, 5, 8, 9]
    assert set(job["envs"]) == {"DATA", "MIRROR"}
    worker = (ROOT / "launch" / "tpu" / "worker.sh").read_text()
    for verb in re.findall(r"worker\.sh (\w+)", job["setup"] + job["run"]):
        assert f"\n  {verb}) " in worker


def test_paths_in_job_files_exist():
    for path in ("launch/gke/job.yaml", "launch/gke/Dockerfile", "launch/sky/job.yaml"):
        text = (ROOT / path).read_text().replace("/whale/", " ").replace("code/", " ")
        for name in re.findall(r"(?<!/)\b(?:launch|configs)/[\w/.]+\w", text):
            assert (ROOT / name).exists(), f"{path} names {name}"
