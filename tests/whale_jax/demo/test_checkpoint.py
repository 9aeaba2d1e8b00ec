"""The shipped checkpoints: complete, small, and the same models for `transformers` as for this project."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from whale_jax.demo.architecture import generation_config, hf_config
from whale_jax.demo.courses import COURSES, Course
from whale_jax.demo.tokenizer import DEMO_DIR, TEMPLATE_FILE, control_ids
from whale_jax.demo.worlds import MadeUpWorld
from whale_jax.domains.chess.demo import demo_tasks as chess_tasks
from whale_jax.domains.chess.game import Game
from whale_jax.domains.chess.tasks import puzzle_of_task
from whale_jax.domains.math import h0 as math_h0
from whale_jax.domains.searchqa import h0
from whale_jax.domains.task import Split
from whale_jax.qwen3_5.chat import CONTROL_TOKENS, ChatCodec
from whale_jax.qwen3_5.convert import load_checkpoint
from whale_jax.qwen3_5.model import forward, unembed

MAX_BYTES = 8 * 2**20
"""Of all of them together."""
TOLERANCE = 1e-4
SEARCHQA = COURSES["searchqa"].folder


@pytest.fixture(params=sorted(COURSES))
def course(request: pytest.FixtureRequest) -> Course:
    return COURSES[request.param]


def opening(domain: str) -> dict:
    """What a conversation of the domain begins with, on material that is not of the demo's test split."""
    if domain == "searchqa":
        question = h0.USER_PROMPT.format(question=MadeUpWorld(21).questions[-1].question)
        messages = [{"role": "system", "content": h0.SYSTEM_PROMPT}, {"role": "user", "content": question}]
        return {"conversation": messages, "tools": h0.TOOLS}
    if domain == "math":
        question = math_h0.USER_PROMPT.format(question="What is 321 * 45?")
        return {"conversation": [{"role": "user", "content": question}], "tools": math_h0.TOOLS}
    position = Game(puzzle_of_task(chess_tasks()[Split.WEIGHT][0])).observe()
    return {"conversation": [{"role": "user", "content": position}]}


def test_the_folders_are_complete_and_small() -> None:
    names = {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        TEMPLATE_FILE,
    }
    for course in COURSES.values():
        assert names == {file.name for file in course.folder.iterdir()}
    files = [file for course in COURSES.values() for file in course.folder.iterdir()]
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES


def test_the_files_are_those_that_the_scripts_describe(course: Course) -> None:
    tokenizer = Tokenizer.from_file(str(course.folder / "tokenizer.json"))
    control = control_ids(tokenizer)
    assert json.loads((course.folder / "config.json").read_text()) == hf_config(course.size, control)
    assert json.loads((course.folder / "generation_config.json").read_text()) == generation_config(control)
    assert (course.folder / TEMPLATE_FILE).read_text() == (DEMO_DIR / TEMPLATE_FILE).read_text()


def test_control_tokens_are_single_ids_and_the_vocabulary_is_full(course: Course) -> None:
    tokenizer = AutoTokenizer.from_pretrained(course.folder)
    assert len(tokenizer) == course.size.vocab
    for text in CONTROL_TOKENS.values():
        assert tokenizer.encode(text, add_special_tokens=False) == [tokenizer.convert_tokens_to_ids(text)]


@pytest.mark.parametrize("before", [" ", '["', "<answer>", "\\n", "(Title: ", "\n", ", "])
def test_a_name_has_the_same_ids_wherever_it_stands(before: str) -> None:
    codec = ChatCodec.from_dir(SEARCHQA)
    for name in ("Kalodur", "Ost Merivaara", "Zhalé-sur-Ton"):
        ids = codec.encode_text(name)
        assert codec.encode_text(before + name)[-len(ids) :] == ids
        assert codec.decode(codec.encode_text(before + name)) == before + name


@pytest.mark.parametrize("before", ["[", "<move>", "[e2", "x", "SAN=", "\n", "K"])
def test_a_square_is_one_id_wherever_it_stands(before: str) -> None:
    codec = ChatCodec.from_dir(COURSES["chess"].folder)
    (square,) = codec.encode_text("h7")
    assert codec.encode_text(before + "h7")[-1] == square
    assert len(codec.encode_text("[e2e4] SAN=Rxe4#\n")) == 8


def test_digits_stand_alone(course: Course) -> None:
    codec = ChatCodec.from_dir(course.folder)
    assert [codec.decode([token]) for token in codec.encode_text("60,500")] == list("60,500")


@pytest.mark.slow
@pytest.mark.parametrize("domain", sorted(COURSES))
def test_transformers_computes_the_same_logits_and_greedy_text(domain: str) -> None:
    folder = COURSES[domain].folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, params = load_checkpoint(folder)
    prompt = tokenizer.apply_chat_template(**opening(domain), add_generation_prompt=True, tokenize=False)
    assert isinstance(prompt, str)
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    with torch.no_grad():
        generated = reference.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False, max_new_tokens=24
        )[0].tolist()
        logits = reference(torch.tensor([generated])).logits[0].numpy()
    tokens = jnp.asarray([generated], jnp.int32)
    ours = np.asarray(unembed(config, params, forward(config, params, tokens, jnp.ones_like(tokens))))[0]
    assert np.abs(ours - logits).max() <= TOLERANCE
    assert ours[len(ids) - 1 : -1].argmax(axis=-1).tolist() == generated[len(ids) :]
