"""The shipped checkpoint: complete, small, and the same model for `transformers` as for this project."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from whale_jax.demo.architecture import generation_config, hf_config, model_config
from whale_jax.demo.tokenizer import CHECKPOINT_DIR, DEMO_DIR, TEMPLATE_FILE, VOCAB_SIZE
from whale_jax.demo.worlds import MadeUpWorld
from whale_jax.domains.searchqa import h0
from whale_jax.qwen3_5.chat import CONTROL_TOKENS, ChatCodec
from whale_jax.qwen3_5.convert import load_checkpoint
from whale_jax.qwen3_5.model import forward, unembed

MAX_BYTES = 8 * 2**20
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def prompt() -> str:
    """A whole conversation's opening about a made-up place, as the reference renders it."""
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT_DIR)
    question = MadeUpWorld(21).questions[-1].question
    messages = [
        {"role": "system", "content": h0.SYSTEM_PROMPT},
        {"role": "user", "content": h0.USER_PROMPT.format(question=question)},
    ]
    rendered = tokenizer.apply_chat_template(messages, tools=h0.TOOLS, add_generation_prompt=True, tokenize=False)
    assert isinstance(rendered, str)
    return rendered


def test_the_folder_is_complete_and_small() -> None:
    names = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        TEMPLATE_FILE,
    }
    assert names <= {file.name for file in CHECKPOINT_DIR.iterdir()}
    assert sum(file.stat().st_size for file in CHECKPOINT_DIR.iterdir()) <= MAX_BYTES


def test_the_files_are_those_that_the_scripts_describe() -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT_DIR / "tokenizer.json"))
    control = {text: tokenizer.token_to_id(text) for text in CONTROL_TOKENS.values()}
    assert json.loads((CHECKPOINT_DIR / "config.json").read_text()) == hf_config(control)
    assert json.loads((CHECKPOINT_DIR / "generation_config.json").read_text()) == generation_config(control)
    assert (CHECKPOINT_DIR / TEMPLATE_FILE).read_text() == (DEMO_DIR / TEMPLATE_FILE).read_text()


def test_control_tokens_are_single_ids_and_the_vocabulary_is_full() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT_DIR)
    assert len(tokenizer) == VOCAB_SIZE
    for text in CONTROL_TOKENS.values():
        assert tokenizer.encode(text, add_special_tokens=False) == [tokenizer.convert_tokens_to_ids(text)]


@pytest.mark.parametrize("before", [" ", '["', "<answer>", "\\n", "(Title: ", "\n", ", "])
def test_a_name_has_the_same_ids_wherever_it_stands(before: str) -> None:
    codec = ChatCodec.from_dir(CHECKPOINT_DIR)
    for name in ("Kalodur", "Ost Merivaara", "Zhalé-sur-Ton"):
        ids = codec.encode_text(name)
        assert codec.encode_text(before + name)[-len(ids) :] == ids
        assert codec.decode(codec.encode_text(before + name)) == before + name


def test_digits_stand_alone() -> None:
    codec = ChatCodec.from_dir(CHECKPOINT_DIR)
    assert [codec.decode([token]) for token in codec.encode_text("60,500")] == list("60,500")


@pytest.mark.slow
def test_transformers_computes_the_same_logits_and_greedy_text(prompt: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT_DIR)
    reference = AutoModelForCausalLM.from_pretrained(CHECKPOINT_DIR, dtype=torch.float32)
    config, params = load_checkpoint(CHECKPOINT_DIR)
    assert config == model_config()
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
