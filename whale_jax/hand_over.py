"""The returned pair in a run's export/ folder: written once, and believed only as long as it is what was written.

export/checkpoint/      Hugging Face checkpoint
       harness.py
       manifest.json    step, hashes of weights and harness, and the SHA-256 of every file; written last
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whale_jax.journal import canonical
from whale_jax.pair import Pair
from whale_jax.qwen3_5.convert import export_checkpoint


def hand_over(folder: Path, pair: Pair, source: Path, weights: Callable[[], Any]) -> None:
    """Writes a pair, unless it is there with all its bits. What is there otherwise was cut or changed, and is replaced.

    Args:
        folder: of the run's own.
        source: the checkpoint folder that the run started from.
        weights: gives the pair's fp32 weights; called only when they are to be written.

    Raises:
        CheckpointError, OSError: it cannot be written.
    """
    told = {"step": pair.step, "weights": pair.weights, "harness": pair.harness_hash}
    manifest = folder / "manifest.json"
    if _is_there(folder, manifest, told):
        return
    manifest.unlink(missing_ok=True)
    for left in [folder / "checkpoint", *folder.glob(".checkpoint.*")]:  # the latter of an export that was killed
        shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    export_checkpoint(source, weights(), folder / "checkpoint")
    (folder / "harness.py").write_text(pair.harness, encoding="utf-8")
    temporary = manifest.with_name(".manifest.json")
    temporary.write_bytes(canonical({**told, "files": _hashes(folder)}))
    os.replace(temporary, manifest)


def _is_there(folder: Path, manifest: Path, told: dict[str, Any]) -> bool:
    try:
        return json.loads(manifest.read_bytes()) == {**told, "files": _hashes(folder)}
    except (FileNotFoundError, ValueError):
        return False


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of everything that is handed over, by path."""
    found = {}
    for path in sorted([folder / "harness.py", *(folder / "checkpoint").rglob("*")]):
        if path.is_file():
            with path.open("rb") as file:
                found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
