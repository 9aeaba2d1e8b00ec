"""Logits of `transformers` for given ids: `python -m whale_jax.doctor.oracle CHECKPOINT PROMPTS.json OUT.npy`.

Run by the doctor as a process of its own; it imports no JAX.
"""

import json
import sys
from pathlib import Path

import numpy as np


def main(checkpoint: str, prompts: str, out: str) -> None:
    """Writes fp32 logits [prompts, V] after the last id of each prompt."""
    import torch
    import transformers

    composite = json.loads((Path(checkpoint) / "config.json").read_text(encoding="utf-8"))["model_type"] == "qwen3_5"
    kind = transformers.Qwen3_5ForConditionalGeneration if composite else transformers.Qwen3_5ForCausalLM
    model = kind.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True).eval()
    rows = []
    with torch.no_grad():
        for ids in json.loads(Path(prompts).read_text(encoding="utf-8")):
            found = model(input_ids=torch.tensor([ids], dtype=torch.long))
            rows.append(found.logits[0, -1].numpy())
    np.save(out, np.stack(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
