"""Rollouts to measure serving with: prompts that share a head, G samples each, tool turns, long-tailed replies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SYSTEM_TOKENS = 64
PROMPT_TOKENS = (100, 250)
"""Of a first prompt, the shared head included."""
TOOL_TOKENS = (40, 80)
"""Of what a tool turn adds."""
MEDIAN_REPLY, SPREAD, SHORTEST_REPLY = 24, 0.9, 4
"""Replies are log-normal: half of them are shorter than 24 tokens, one in forty is longer than 140."""


@dataclass(frozen=True)
class Turn:
    """`new_ids` enter the conversation, then `sampled` ids are sampled."""

    new_ids: tuple[int, ...]
    sampled: int


@dataclass(frozen=True)
class Workload:
    """Conversations, the samples of a group one after another.

    Attributes:
        group: samples of one prompt.
        conversations: each a sequence of turns.
    """

    group: int
    conversations: tuple[tuple[Turn, ...], ...]

    @property
    def sampled_tokens(self) -> int:
        """Of all replies."""
        return sum(turn.sampled for turns in self.conversations for turn in turns)

    @property
    def longest(self) -> int:
        """Ids of the longest conversation."""
        return max(sum(len(turn.new_ids) + turn.sampled for turn in turns) for turns in self.conversations)

    @property
    def new_prompt_tokens(self) -> int:
        """Prompt tokens to be computed: the shared head once, each first prompt once, all that tool turns add."""
        firsts = sum(len(turns[0].new_ids) - SYSTEM_TOKENS for turns in self.conversations[:: self.group])
        later = sum(len(turn.new_ids) for turns in self.conversations for turn in turns[1:])
        return SYSTEM_TOKENS + firsts + later

    @property
    def unshared_prompt_tokens(self) -> int:
        """Prompt tokens computed where only a conversation's own past is kept."""
        return sum(len(turn.new_ids) for turns in self.conversations for turn in turns)

    @property
    def repeated_prompt_tokens(self) -> int:
        """Prompt tokens computed where every turn starts from nothing."""
        total = 0
        for turns in self.conversations:
            so_far = 0
            for turn in turns:
                so_far += len(turn.new_ids)
                total += so_far
                so_far += turn.sampled
        return total


def make(*, prompts: int, group: int, tool_turns: int, longest_reply: int, vocab: int, seed: int) -> Workload:
    """A workload that depends on its arguments alone.

    Args:
        prompts: groups.
        group: samples of each prompt.
        tool_turns: turns after the first reply, each with a reply of its own.
        longest_reply: where the tail of the replies' lengths is cut.
        vocab: ids are drawn below it.
        seed: of everything random.
    """
    rng = np.random.default_rng(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, vocab, count).tolist())

    def between(bounds: Sequence[int]) -> int:
        return int(rng.integers(bounds[0], bounds[1] + 1))

    def reply() -> int:
        return int(np.clip(rng.lognormal(np.log(MEDIAN_REPLY), SPREAD), SHORTEST_REPLY, longest_reply))

    head, conversations = ids(SYSTEM_TOKENS), []
    for _ in range(prompts):
        first = (*head, *ids(between(PROMPT_TOKENS) - SYSTEM_TOKENS))
        for _ in range(group):
            later = [Turn(ids(between(TOOL_TOKENS)), reply()) for _ in range(tool_turns)]
            conversations.append((Turn(first, reply()), *later))
    return Workload(group, tuple(conversations))
