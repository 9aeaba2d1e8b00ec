"""Boards are sound SVG, seen from the solver's side, and stop where the episode went wrong."""

from xml.etree import ElementTree

from tests.whale_jax.domains.chess.positions import PAPER_LINE, TWO_MATES
from whale_jax.domains.chess.boards import RIGHT_COLOUR, WRONG_COLOUR, episode_frames, line_frames, trace_frames


def captions(frames):
    for frame in frames:
        assert ElementTree.fromstring(frame.svg).tag.endswith("svg")
    return [frame.caption for frame in frames]


def test_the_stored_line():
    frames = line_frames(PAPER_LINE, size=120)
    assert captions(frames) == ["White played Ra7; Black to move", "Black: Qb1+", "White: Bd1", "Black: Qxd1#"]
    assert 'width="120"' in frames[0].svg
    assert RIGHT_COLOUR in frames[1].svg
    assert WRONG_COLOUR not in "".join(frame.svg for frame in frames)
    assert RIGHT_COLOUR not in frames[0].svg + frames[2].svg


def test_a_wrong_move_is_drawn_and_is_the_last():
    frames = episode_frames(PAPER_LINE, ["Qb1+", "Qb2", "Qb1"])
    assert captions(frames)[-1] == "Black: Qb2"
    assert len(frames) == 4
    assert WRONG_COLOUR in frames[-1].svg


def test_a_move_that_cannot_be_played_is_a_caption():
    frames = episode_frames(TWO_MATES, ["<b>Rz9</b>"])
    assert captions(frames)[-1] == "not played: <b>Rz9</b>: this is neither UCI nor SAN"


def test_a_trace_is_replayed():
    def reply(turn, text):
        return {"source": "sampled", "text": f"Hm.</think>\n\n{text}<|im_end|>", "turn": turn, "finish": "stop"}

    prompt = {"source": "prompt", "text": "<|im_start|>assistant\n<think>\n"}
    texts = ["no idea", "<move>b2b2</move>", "<move>b2b1</move>", "Qb2", "<move>b1d1</move>"]
    trace = {"chats": [[prompt, *(reply(turn, text) for turn, text in enumerate(texts))]]}
    assert captions(trace_frames(PAPER_LINE, trace))[1:] == ["Black: Qb1+", "White: Bd1", "Black: Qb2"]


def test_moves_beyond_the_line_are_wrong():
    assert captions(episode_frames(TWO_MATES, ["Rb8#", "Rb7"]))[-1].startswith("not played: ")
