"""The main job in two processes, nothing replaced: engines, sandboxes, training and the export are the real ones."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.whale_jax.demo_run import SMALL
from tests.whale_jax.hosts.job import Job
from whale_jax.export import export_run
from whale_jax.qwen3_5.convert import load_checkpoint
from whale_jax.qwen3_5.model import forward, unembed

FLAGS = (*SMALL, "--weight_budget_epochs=0.67", "--rows=4", "--mesh_fsdp=2", "--candidates=1", "--keep_every=1")
"""One cycle: two training steps, in the second of which something is accepted; one search iteration."""


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.slow
def test_a_run_in_two_processes_and_its_export(tmp_path):
    run_dir = tmp_path / "run"
    Job(run_dir, 2, *FLAGS, devices=1, module="whale_jax.main").succeeds()
    entries = [json.loads(path.read_text()) for path in sorted((run_dir / "journal").iterdir())]
    assert [entry["kind"] for entry in entries][:5] == ["evaluation", "weight", "evaluation", "search", "search"]
    assert sum(step["updates"] for step in entries[1]["steps"]) > 0
    exported, again = run_dir / "export" / "checkpoint", tmp_path / "again"
    export_run(run_dir, again, step=json.loads((run_dir / "export" / "manifest.json").read_text())["step"])
    assert files(exported) == files(again)  # collected from two processes, and restored in one
    config, params = load_checkpoint(exported)
    reference = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    ids = list(range(50, 66))
    with torch.no_grad():
        text = reference.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=16)[0].numpy()
    tokens = text[None].astype(np.int32)
    ours = np.asarray(unembed(config, params, forward(config, params, tokens, np.ones_like(tokens))))[0]
    assert ours[len(ids) - 1 : -1].argmax(axis=-1).tolist() == text[len(ids) :].tolist()
