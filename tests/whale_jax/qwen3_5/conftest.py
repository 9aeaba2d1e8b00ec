"""A tiny architecture, a random checkpoint written by `transformers`, and a small byte-level tokenizer."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from whale_jax.qwen3_5.chat import CONTROL_TOKENS
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import param_shapes

HF_FIELDS: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "rms_norm_eps": 3e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
}
"""Two groups; value heads are twice the key heads; nothing at its default where a default could hide a setting that is
ignored."""


SLOW_DECAY = (-5.0, 0.0)
"""Range of a_log here: at its initialisation the state forgets within a token or two, so its loss would go unseen."""


@pytest.fixture(scope="session")
def quick_jit() -> Callable[..., Any]:
    """`jax.jit` at LLVM's lowest level: these programs run for milliseconds and compile for seconds."""
    return partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="session")
def tiny_config() -> Qwen35Config:
    """One group, so that compiling stays cheap where depth does not matter."""
    return Qwen35Config(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        linear_key_heads=2,
        linear_value_heads=4,
        linear_key_dim=8,
        linear_value_dim=8,
    )


@pytest.fixture(scope="session")
def tiny_params(tiny_config):
    """Random parameters, larger than at initialisation, so that every layer matters."""
    rng = np.random.default_rng(0)
    shapes, structure = jax.tree.flatten_with_path(
        param_shapes(tiny_config), is_leaf=lambda node: isinstance(node, tuple)
    )
    drawn = [
        rng.uniform(*SLOW_DECAY, shape) if path[-1].key == "a_log" else 0.3 * rng.normal(size=shape)
        for path, shape in shapes
    ]
    return jax.tree.unflatten(structure, [jnp.asarray(array, jnp.float32) for array in drawn])


@pytest.fixture(scope="session")
def make_reference() -> Callable[..., Any]:
    """Random `transformers` models in fp32 with non-trivial norms; takes changes to `HF_FIELDS`."""
    torch = pytest.importorskip("torch")
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.set_num_threads(1)

    def make(**changes: Any) -> Any:
        torch.manual_seed(0)
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**HF_FIELDS, **changes})).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("A_log"):
                    parameter.uniform_(*SLOW_DECAY)
                else:
                    parameter.add_(0.05 * torch.randn_like(parameter))
        return model

    return make


@pytest.fixture(scope="session")
def reference_model(make_reference):
    """The one with `HF_FIELDS` as they are."""
    return make_reference()


@pytest.fixture(scope="session")
def checkpoint(reference_model, tmp_path_factory) -> Path:
    """`reference_model` as `transformers` saves it."""
    directory = tmp_path_factory.mktemp("checkpoint")
    reference_model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    """A byte-level BPE tokenizer made the way Qwen3.5's is, with one more added token."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [*CONTROL_TOKENS.values(), "<|vision_start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(text, special=text.startswith("<|"), normalized=False) for text in added],
        show_progress=False,
    )
    words = "system user assistant tool_call tool_response think im_start im_end function parameter query search"
    tokenizer.train_from_iterator([f"<|{word}|> </{word}>\n {word}\n\n" * 20 for word in words.split()], trainer)
    return tokenizer.to_str()
