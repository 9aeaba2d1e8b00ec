"""The same workload with `generate` of `transformers`, on the CPU.

A batch runs until its longest reply is done, and every turn starts from the whole conversation: `generate` keeps no
state between calls that fits rows of different length. The lengths of replies are the workload's, by a stopping
criterion per row, so that both sides sample the same number of tokens.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whale_jax.bench.engine_side import SAMPLING, Speed
from whale_jax.bench.workload import Turn, Workload


class TorchModel:
    """A checkpoint in `transformers`."""

    def __init__(self, directory: Path) -> None:
        """Raises ImportError where torch or transformers is not installed."""
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._all_threads = torch.get_num_threads()

    def best(self, workload: Workload, batches: Sequence[int]) -> tuple[int, int]:
        """The (threads, batch) of one thread or all, and of these batch sizes, that samples most tokens per second.

        Each is tried on one batch, which is as wide as they all will be; of several turns, on the first two.
        """
        tried = {}
        for threads in sorted({1, self._all_threads}):
            for batch in sorted({min(batch, len(workload.conversations)) for batch in batches}):
                part = tuple(turns[:2] for turns in workload.conversations[:batch])
                speed = self.run(Workload(workload.group, part), threads, batch)
                tried[threads, batch] = speed.sampled / speed.seconds
        return max(tried, key=lambda choice: tried[choice])

    def run(self, workload: Workload, threads: int, batch: int) -> Speed:
        """Runs a workload in batches of consecutive conversations, one turn of all of them after the other."""
        before = self._torch.get_num_threads()
        self._torch.set_num_threads(threads)
        try:
            return self._run(workload, batch)
        finally:
            self._torch.set_num_threads(before)

    def _run(self, workload: Workload, batch: int) -> Speed:
        self._turns(workload.conversations[:1], seed=0)
        start, processor = time.perf_counter(), time.process_time()
        for index in range(0, len(workload.conversations), batch):
            self._turns(workload.conversations[index : index + batch], seed=index)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        return Speed(seconds, processor, workload.sampled_tokens, {})

    def _turns(self, conversations: tuple[tuple[Turn, ...], ...], seed: int) -> None:
        self._torch.manual_seed(seed)
        histories: list[list[int]] = [[] for _ in conversations]
        for number in range(len(conversations[0])):
            turns = [conversation[number] for conversation in conversations]
            for history, turn in zip(histories, turns, strict=True):
                history += turn.new_ids
            for history, reply in zip(histories, self._generate(histories, turns), strict=True):
                history += reply

    def _generate(self, histories: list[list[int]], turns: list[Turn]) -> list[list[int]]:
        torch = self._torch
        width = max(map(len, histories))
        ids = torch.zeros((len(histories), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, history in enumerate(histories):
            ids[row, width - len(history) :] = torch.tensor(history)
            mask[row, width - len(history) :] = 1
        lengths = torch.tensor([turn.sampled for turn in turns])

        def ended(input_ids: Any, scores: Any, **_: Any) -> Any:
            return input_ids.shape[1] - width >= lengths

        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=SAMPLING.temperature,
                top_k=SAMPLING.top_k,
                max_new_tokens=int(lengths.max()),
                stopping_criteria=[ended],
                eos_token_id=None,
                pad_token_id=0,
            )
        replies = out[:, width:].tolist()
        return [reply[: turn.sampled] for reply, turn in zip(replies, turns, strict=True)]


def write_wide_checkpoint(directory: Path, like: Path) -> int:
    """A random checkpoint in which arithmetic, not dispatch, decides; returns the number of its parameters.

    Args:
        directory: gets config.json and the weights.
        like: a checkpoint whose config.json gives everything but the sizes.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 3,
    }
    fields = json.loads((like / "config.json").read_text(encoding="utf-8")) | sizes
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
    net.save_pretrained(directory)
    return int(np.sum([weight.numel() for weight in net.parameters()]))
