"""The demo's byte-level BPE tokenizer: 1,536 entries, Qwen3.5's control tokens, digits one by one.

Pre-tokenisation follows Qwen3.5's pattern but for one thing: a word with a capital letter never takes the blank or
sign before it into its first token, and ends where small letters end. So a name has the same ids after a blank, a
quote, a bracket, a tag or an escaped newline, which lets a tiny model copy it from any place to any other.

`python -m whale_jax.demo.tokenizer` trains it anew on generated text and writes the tokenizer's files of the
checkpoint folder.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from whale_jax.demo.episodes import chat_episode
from whale_jax.demo.exercises import exercise
from whale_jax.demo.worlds import MadeUpWorld
from whale_jax.qwen3_5.chat import CONTROL_TOKENS
from whale_jax.qwen3_5.template import ChatTemplate

DEMO_DIR = Path(__file__).parent
CHECKPOINT_DIR = DEMO_DIR / "checkpoint"
TEMPLATE_FILE = "chat_template.jinja"
VOCAB_SIZE = 1536
TRAINING_TEXTS = 12_000
TRAINING_SEED = 20_260_829
MARKED_SPECIAL = frozenset({"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
"""The control tokens that Qwen3.5 marks as special; its tags are added tokens that are not."""

_SMALL = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
PRETOKENIZE_PATTERN = (
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)| ?[{_SMALL}]+|[\p{{Lu}}\p{{Lt}}]+[{_SMALL}]*|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """A tokenizer of these merges with the control tokens after them."""
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_PATTERN), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for text in CONTROL_TOKENS.values():
        token = AddedToken(text, normalized=False, special=text in MARKED_SPECIAL)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def train(texts: Iterable[str]) -> Tokenizer:
    """Learns the merges from `texts`, control tokens cut out of them."""
    bare = build({}, [])
    learner = Tokenizer(BPE())
    learner.normalizer, learner.pre_tokenizer = bare.normalizer, bare.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    control = re.compile("|".join(map(re.escape, CONTROL_TOKENS.values())))
    learner.train_from_iterator((part for text in texts for part in control.split(text) if part), trainer)
    model = json.loads(learner.to_str())["model"]
    return build(model["vocab"], [(left, right) for left, right in model["merges"]])


def training_texts(count: int, seed: int) -> Iterator[str]:
    """Generated text in about the proportions of the training."""
    rng = random.Random(seed)
    template = ChatTemplate.from_dir(DEMO_DIR)
    world = MadeUpWorld(rng.getrandbits(48))
    for number in range(count):
        if number % 10 == 9:
            world = MadeUpWorld(rng.getrandbits(48))
        spans = exercise(rng, world) if rng.random() < 0.2 else chat_episode(rng, world, template)
        yield "".join(span.text for span in spans)


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


if __name__ == "__main__":
    write(train(training_texts(TRAINING_TEXTS, TRAINING_SEED)), CHECKPOINT_DIR)
