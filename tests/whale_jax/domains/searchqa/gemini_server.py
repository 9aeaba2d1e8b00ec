"""What a Gemini server answers, for `scripted_http`, and what is in a judge's prompt."""

import json
import re
from pathlib import Path

from tests.whale_jax.domains.searchqa.scripted_http import Answer, Request

ROWS = [json.loads(line) for line in (Path(__file__).parent / "judge_rows.jsonl").read_text("utf-8").splitlines()]


def reply(text, *, finish="STOP", thoughts=None, usage=(100, 1, 0)):
    """A generateContent response."""
    parts = [{"text": thoughts, "thought": True}] if thoughts else []
    prompt, output, thinking = usage
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": output, "thoughtsTokenCount": thinking}
    return Answer(
        body={
            "candidates": [{"content": {"role": "model", "parts": [*parts, {"text": text}]}, "finishReason": finish}],
            "usageMetadata": counts,
        }
    )


def error(code, status="UNAVAILABLE", **headers):
    return Answer(code, {"error": {"code": code, "message": "no", "status": status}}, headers)


def prompt_of(request: Request) -> str:
    return request.body["contents"][0]["parts"][0]["text"]


def asked(prompt: str) -> tuple[str, tuple[str, ...], str]:
    """Question, accepted answers and candidate answer of a prompt, as a careful reader finds them."""
    question = re.search(r"\nQuestion:\n(.*?)\n\nAccepted answers, one a line:\n", prompt, re.DOTALL)
    references = re.search(r"\nAccepted answers, one a line:\n(.*?)\n\nCandidate answer:\n", prompt, re.DOTALL)
    answer = re.search(r"\[answer (\w{16}) begins\]\n(.*)\n\[answer \1 ends\]\n\nReply with one", prompt, re.DOTALL)
    assert question, prompt
    assert references, prompt
    assert answer, prompt
    return question[1], tuple(line.removeprefix("- ") for line in references[1].split("\n")), answer[2]


def by_hand(request: Request) -> Answer:
    """The verdict of the hand-made row that the prompt is about."""
    table = {(row["question"], tuple(row["references"]), row["answer"]): row["verdict"] for row in ROWS}
    return reply(table[asked(prompt_of(request))])
