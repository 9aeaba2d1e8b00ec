"""The verifier with an LLM judge: tags by the paper's rule, then the judge, then the protocol's rule for its failures.

DESIGN section 12: when the judge gives no verdict, the honest protocol leaves the answer unscored (it is missing data,
never a 0), and the paper's falls back on normalised exact match.
"""

from __future__ import annotations

from collections.abc import Sequence

from whale_jax.domains.domain import VerifierProtocol
from whale_jax.domains.searchqa.judge import Judge
from whale_jax.domains.searchqa.verifier import exact_match, has_reference
from whale_jax.domains.verdict import Verdict


def judged(
    answer_text: str | None, question: str, references: Sequence[str], judge: Judge, *, protocol: VerifierProtocol
) -> Verdict:
    """Scores the text of a returned reply. The judge is asked only when there is an answer and something to compare.

    Args:
        answer_text: None when there is no text to read, for instance because thinking never ended.
        question: what was asked.
        references: the accepted answers, the primary one first.
        judge: what decides.
        protocol: what becomes of an answer without a verdict.
    """
    without_judge = exact_match(answer_text, references)
    answer = without_judge.answer
    if not answer or not has_reference(references):
        return without_judge
    judgement = judge.judge(question, references, answer)
    if judgement.correct is not None:
        return Verdict(1 if judgement.correct else 0, answer, judgement.reason)
    if protocol == "paper":
        return Verdict(without_judge.reward, answer, f"{without_judge.reason} ({judgement.reason})")
    return Verdict(None, answer, judgement.reason)
