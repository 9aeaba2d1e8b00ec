"""The demos' byte-level BPE tokenizers: Qwen3.5's control tokens, digits one by one. SearchQA's has 1,536 entries.

Pre-tokenisation follows Qwen3.5's pattern but for one thing: a word with a capital letter never takes the blank or
sign before it into its first token, and ends where small letters end. So a name has the same ids after a blank, a
quote, a bracket, a tag or an escaped newline, which lets a tiny model copy it from any place to any other.

`python -m whale_jax.demo.scaffold DOMAIN` trains one anew on generated text.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from whale_jax.qwen3_5.chat import CONTROL_TOKENS

DEMO_DIR = Path(__file__).parent
TEMPLATE_FILE = "chat_template.jinja"
MARKED_SPECIAL = frozenset({"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
"""The control tokens that Qwen3.5 marks as special; its tags are added tokens that are not."""

_SMALL = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
PRETOKENIZE_PATTERN = (
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)| ?[{_SMALL}]+|[\p{{Lu}}\p{{Lt}}]+[{_SMALL}]*|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build(vocabulary: dict[str, int], merges: list[tuple[str, str]], pattern: str) -> Tokenizer:
    """A tokenizer of these merges within the matches of `pattern`, with the control tokens after them."""
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for text in CONTROL_TOKENS.values():
        token = AddedToken(text, normalized=False, special=text in MARKED_SPECIAL)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def train(texts: Iterable[str], vocab_size: int, pattern: str) -> Tokenizer:
    """Learns the merges from `texts`, control tokens cut out of them; `vocab_size` entries, those tokens included."""
    bare = build({}, [], pattern)
    learner = Tokenizer(BPE())
    learner.normalizer, learner.pre_tokenizer = bare.normalizer, bare.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    control = re.compile("|".join(map(re.escape, CONTROL_TOKENS.values())))
    learner.train_from_iterator((part for text in texts for part in control.split(text) if part), trainer)
    model = json.loads(learner.to_str())["model"]
    return build(model["vocab"], [(left, right) for left, right in model["merges"]], pattern)


def control_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the control tokens by their text."""
    ids = {text: tokenizer.token_to_id(text) for text in CONTROL_TOKENS.values()}
    return {text: token for text, token in ids.items() if token is not None}


def write(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and the chat template into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    template = (DEMO_DIR / TEMPLATE_FILE).read_text(encoding="utf-8")
    (directory / TEMPLATE_FILE).write_text(template, encoding="utf-8")
