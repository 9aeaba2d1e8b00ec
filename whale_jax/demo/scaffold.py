"""Makes a demo checkpoint's folder but for its weights: `python -m whale_jax.demo.scaffold DOMAIN --out=DIR`.

The tokenizer is trained on generated text; every tensor is there, in its final dtype, and zero, until
`whale_jax.demo.train` puts trained ones in its place.
"""

import argparse
import json
import random
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from whale_jax.demo.architecture import generation_config, hf_config
from whale_jax.demo.courses import COURSES, TOKENIZER_SEED, Course
from whale_jax.demo.tokenizer import DEMO_DIR, control_ids, train, write
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import is_matrix
from whale_jax.qwen3_5.template import ChatTemplate
from whale_jax.qwen3_5.tensor_table import slots

_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def scaffold(course: Course, out: Path) -> None:
    """Writes the folder `out` of a model that has learned nothing."""
    texts = course.samples(random.Random(TOKENIZER_SEED), ChatTemplate.from_dir(DEMO_DIR))
    tokenizer = train(texts, course.size.vocab, course.pattern)
    write(tokenizer, out)
    control = control_ids(tokenizer)
    for name, fields in (
        ("config.json", hf_config(course.size, control)),
        ("generation_config.json", generation_config(control)),
    ):
        (out / name).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    arrays = {
        name: np.ascontiguousarray(
            slot.transform.out(
                np.zeros(slot.shape, _DTYPES[course.size.dtype if is_matrix(slot.path[-1]) else "float32"])
            )
        )
        for name, slot in slots(Qwen35Config.from_dir(out), "model.")
    }
    save_file(arrays, out / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("domain", choices=sorted(COURSES))
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    scaffold(COURSES[arguments.domain], arguments.out)


if __name__ == "__main__":
    main()
