"""The verdict: the number in the reply's last pair of answer tags."""

import re

from whale_jax.domains.verdict import Verdict

_ANSWER = re.compile(r"<answer>\s*([0-9,]{1,20})\s*</answer>")


def verify(answer_text: str | None, reference: int) -> Verdict:
    """`answer_text` is what the policy sampled after its thinking, or None. The reason tells nothing of `reference`."""
    found = _ANSWER.findall(answer_text or "")
    if not found:
        return Verdict(0, None, "no number in answer tags")
    right = found[-1].replace(",", "") == str(reference)
    return Verdict(1 if right else 0, found[-1], "right" if right else "another number")
