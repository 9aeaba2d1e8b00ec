"""Shape of a dense Qwen3.5 text model, read from its checkpoint's own config.json.

Letters used in shape suffixes all over this package (`q_BxTxNxH` is a four-dimensional array):

    B batch rows (or slots)        V vocabulary              G groups of four layers
    T positions in a row           D hidden size             L linear layers of a group (3)
    C positions of one extend      F feed-forward size       W carried conv positions (kernel - 1)
    S positions of a KV cache      N query heads             Q conv channels (q, k and v of a linear layer)
    K key positions attended to    Kh key/value heads        Hk / Hv linear key / value heads
    n chunks, c chunk length       H head size               Dk / Dv linear key / value head size

Source of the fields: PAPER section 7 and `transformers` (models/qwen3_5/configuration_qwen3_5.py). A field that would
change the numbers and that this package does not implement is a `ConfigError` naming it; a field known to change
nothing (dropout, initialisation, token ids, bookkeeping) is ignored; any other field is an error too, so that nothing
is ignored by accident.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FULL_ATTENTION_INTERVAL = 4
"""Layers repeat linear, linear, linear, full."""

LINEAR_PER_GROUP = FULL_ATTENTION_INTERVAL - 1


class ConfigError(ValueError):
    """A config.json that is malformed, or that describes a model this package does not implement."""


@dataclass(frozen=True)
class Qwen35Config:
    """Everything that decides the numbers of a dense Qwen3.5 text model.

    Defaults stand for what every dense Qwen3.5 has in common; sizes have none.

    Raises:
        ConfigError: a size is not positive, or sizes do not fit together.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    """Size of one key head (Dk), not of all of them."""
    linear_value_dim: int
    """Size of one value head (Dv)."""
    conv_kernel: int = 4
    rms_eps: float = 1e-6
    rope_theta: float = 1e7
    rotary_fraction: float = 0.25
    tie_embeddings: bool = True
    full_attention_interval: int = FULL_ATTENTION_INTERVAL

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be a positive integer, got {value!r}"
            for name, value in vars(self).items()
            if name not in ("rms_eps", "rope_theta", "rotary_fraction", "tie_embeddings")
            and (not isinstance(value, int) or isinstance(value, bool) or value <= 0)
        ]
        problems += [
            f"{name} must be a positive number, got {getattr(self, name)!r}"
            for name in ("rms_eps", "rope_theta", "rotary_fraction")
            if not isinstance(getattr(self, name), int | float) or not 0 < getattr(self, name) < float("inf")
        ]
        if not problems:
            problems = self._misfits()
        if problems:
            raise ConfigError("; ".join(problems))

    def _misfits(self) -> list[str]:
        checks = [
            (
                self.full_attention_interval == FULL_ATTENTION_INTERVAL,
                f"full_attention_interval must be {FULL_ATTENTION_INTERVAL}, got {self.full_attention_interval}",
            ),
            (
                self.num_layers % FULL_ATTENTION_INTERVAL == 0,
                f"num_hidden_layers ({self.num_layers}) must be a multiple of {FULL_ATTENTION_INTERVAL}",
            ),
            (
                self.num_heads % self.num_kv_heads == 0,
                f"num_attention_heads ({self.num_heads}) must be a multiple of num_key_value_heads "
                f"({self.num_kv_heads})",
            ),
            (
                self.linear_value_heads % self.linear_key_heads == 0,
                f"linear_num_value_heads ({self.linear_value_heads}) must be a multiple of linear_num_key_heads "
                f"({self.linear_key_heads})",
            ),
            (self.conv_kernel >= 2, f"linear_conv_kernel_dim must be at least 2, got {self.conv_kernel}"),
            (self.rotary_fraction <= 1, f"partial_rotary_factor must be at most 1, got {self.rotary_fraction}"),
            (
                self.rotary_dim >= 2 and self.rotary_dim % 2 == 0,
                f"head_dim x partial_rotary_factor must be an even number of at least 2, got {self.rotary_dim}",
            ),
        ]
        return [message for holds, message in checks if not holds]

    @property
    def num_groups(self) -> int:
        """G: groups of three linear layers and one full-attention layer."""
        return self.num_layers // FULL_ATTENTION_INTERVAL

    @property
    def rotary_dim(self) -> int:
        """Leading features of a query or key head that RoPE turns."""
        return int(self.head_dim * self.rotary_fraction)

    @property
    def key_size(self) -> int:
        """Hk x Dk."""
        return self.linear_key_heads * self.linear_key_dim

    @property
    def value_size(self) -> int:
        """Hv x Dv."""
        return self.linear_value_heads * self.linear_value_dim

    @property
    def conv_channels(self) -> int:
        """Q: the channels that pass through the causal convolution, in the order q, k, v."""
        return 2 * self.key_size + self.value_size

    @property
    def conv_window(self) -> int:
        """W: conv inputs carried from one call to the next."""
        return self.conv_kernel - 1

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any]) -> "Qwen35Config":
        """Reads a parsed config.json: text-only (`qwen3_5_text`) or composite (`qwen3_5`, its `text_config`).

        Raises:
            ConfigError: names every field that is missing, unknown or not supported.
        """
        model_type = fields.get("model_type")
        if model_type == "qwen3_5":
            text = fields.get("text_config")
            if not isinstance(text, Mapping):
                raise ConfigError('config.json of model_type "qwen3_5" has no "text_config" object')
            if fields.get("quantization_config") is not None:
                raise ConfigError("quantization_config is not supported (only null)")
            # Where the two levels disagree transformers obeys the outer one: it builds the composite's head.
            tied = fields.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
            return _parse_text({**text, "tie_word_embeddings": tied})
        if model_type == "qwen3_5_text":
            return _parse_text(fields)
        raise ConfigError(f'model_type must be "qwen3_5" or "qwen3_5_text", got {model_type!r}')

    @classmethod
    def from_dir(cls, path: str | Path) -> "Qwen35Config":
        """Reads `<path>/config.json`.

        Raises:
            ConfigError: as `from_hf`, with the file named; also when the file is missing or no JSON object.
        """
        file = Path(path) / "config.json"
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read ({error.strerror}); a checkpoint directory needs one") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: not valid JSON ({error})") from error
        if not isinstance(fields, dict):
            raise ConfigError(f"{file}: must hold a JSON object, got {type(fields).__name__}")
        try:
            return cls.from_hf(fields)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from error


_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "linear_num_key_heads": "linear_key_heads",
    "linear_num_value_heads": "linear_value_heads",
    "linear_key_head_dim": "linear_key_dim",
    "linear_value_head_dim": "linear_value_dim",
    "linear_conv_kernel_dim": "conv_kernel",
    "rms_norm_eps": "rms_eps",
}
"""Hugging Face name to ours: all of these are required."""

_FIXED = {
    "model_type": ("qwen3_5_text",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "mamba_ssm_dtype": ("float32",),
    "full_attention_interval": (FULL_ATTENTION_INTERVAL,),
    "mlp_only_layers": ([],),
    "use_sliding_window": (False,),
    "sliding_window": (None,),
    "layer_norm_type": ("rmsnorm",),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "quantization_config": (None,),
}
"""Fields that may be present with these values alone: another value would need code that is not here."""

_HARMLESS = """
    _name_or_path architectures attention_dropout bad_words_ids begin_suppress_tokens bos_token_id
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id id2label initializer_range label2id layer_types length_penalty
    max_length max_position_embeddings min_length mtp_num_hidden_layers mtp_use_dedicated_embeddings
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_router_logits output_scores pad_token_id partial_rotary_factor prefix problem_type pruned_heads
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate rope_parameters rope_scaling
    rope_theta sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss tie_word_embeddings
    tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache
"""
_WITHOUT_EFFECT = frozenset(_HARMLESS.split())
"""Fields that do not change the numbers, or that `_parse_text` reads by name."""


def _parse_text(fields: Mapping[str, Any]) -> Qwen35Config:
    problems = [f"{name} is missing" for name in _SIZES if name not in fields]
    for name, value in fields.items():
        if name in _FIXED and value not in _FIXED[name]:
            allowed = " or ".join(map(repr, _FIXED[name]))
            problems.append(f"{name} = {value!r} is not supported (only {allowed})")
        elif name not in _FIXED and name not in _SIZES and name not in _WITHOUT_EFFECT:
            problems.append(f"{name} = {value!r} is not a field this package knows; it may change the numbers")
    rope, rope_problems = _parse_rope(fields)
    problems += rope_problems + _layer_type_problems(fields)
    if not isinstance(fields.get("tie_word_embeddings", False), bool):
        problems.append(f"tie_word_embeddings must be true or false, got {fields['tie_word_embeddings']!r}")
    if problems:
        raise ConfigError("; ".join(problems))
    sizes = {ours: fields[theirs] for theirs, ours in _SIZES.items()}
    return Qwen35Config(**sizes, **rope, tie_embeddings=fields.get("tie_word_embeddings", False))


def _parse_rope(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """RoPE base and fraction; newer files nest them in `rope_parameters`, older ones keep them flat."""
    nested = fields.get("rope_parameters") or {}
    if not isinstance(nested, Mapping):
        return {}, [f"rope_parameters must be an object, got {nested!r}"]
    problems = []
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind != "default":
        problems.append(f'rope_parameters.rope_type = {kind!r} is not supported (only "default")')
    known = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
    problems += [f"rope_parameters.{name} is not supported" for name in nested if name not in known]
    if fields.get("rope_scaling") is not None:
        problems.append("rope_scaling is not supported (only null)")
    theta = nested.get("rope_theta", fields.get("rope_theta"))
    if theta is None:
        problems.append("rope_parameters.rope_theta is missing")
    fraction = nested.get("partial_rotary_factor", fields.get("partial_rotary_factor", 0.25))
    return {"rope_theta": theta, "rotary_fraction": fraction}, problems


def _layer_type_problems(fields: Mapping[str, Any]) -> list[str]:
    layer_types = fields.get("layer_types")
    if layer_types is None or not isinstance(fields.get("num_hidden_layers"), int):
        return []
    expected = [
        "full_attention" if (i + 1) % FULL_ATTENTION_INTERVAL == 0 else "linear_attention"
        for i in range(fields["num_hidden_layers"])
    ]
    if layer_types == expected:
        return []
    return [f"layer_types must repeat three linear_attention and one full_attention, got {layer_types!r}"]
