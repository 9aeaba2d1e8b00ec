"""What a request must satisfy before it is accepted."""

from __future__ import annotations

from collections.abc import Sequence

from whale_jax.serving.driver import ContextOverflow, Sampling, ServingError, Session
from whale_jax.serving.engine import Engine
from whale_jax.serving.sampling import MAX_STOP_IDS


def check_request(
    engine: Engine, session: Session, extensions: Sequence[Sequence[int]], max_tokens: int, sampling: Sampling
) -> int:
    """Validates a request against the engine and its session. Reads constants alone: any thread may call it.

    Returns:
      `max_tokens`, or less where the session's ids reach `max_len` first.

    Raises:
      ServingError, ContextOverflow, ValueError: as documented for `Driver.generate`.
    """
    if session.closed:
        raise ServingError("the session is closed, or an earlier request on it failed: open another one")
    if session.busy:
        raise ServingError("a request is in flight on this session: await it first")
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be >= 1, got {max_tokens}")
    if sampling.top_k > engine.max_top_k:
        raise ValueError(f"top_k {sampling.top_k} exceeds the engine's max_top_k {engine.max_top_k}")
    if len(engine.stop_ids) + len(sampling.stop_ids) > MAX_STOP_IDS:
        raise ValueError(
            f"at most {MAX_STOP_IDS} stop ids, {len(engine.stop_ids)} of them the engine's: got "
            f"{len(sampling.stop_ids)} more"
        )
    if sampling.stop_strings and engine.token_bytes is None:
        raise ValueError("stop strings need an engine that knows its tokens' text: give it token_bytes")
    new = [token for extension in extensions for token in extension]
    if not session.ids and not new:
        raise ValueError("the first request of a session needs at least one id")
    if bad := [token for token in (*new, *sampling.stop_ids) if not 0 <= token < engine.vocab_size]:
        raise ValueError(f"ids outside the vocabulary of {engine.vocab_size}: {bad[:5]}")
    room = engine.max_len - len(session.ids) - len(new)
    if room < 1:
        raise ContextOverflow(
            f"{len(session.ids)} ids in the session and {len(new)} new ones leave no room to sample: "
            f"max_len is {engine.max_len}"
        )
    return min(max_tokens, room)
