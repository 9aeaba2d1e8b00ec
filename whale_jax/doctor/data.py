"""The task files: those that were prepared, to the bit, and whether the domain can read them."""

from pathlib import Path

from harness_search.sandbox.backends import SandboxUnavailable
from whale_jax.assemble import read_domain
from whale_jax.config import RunConfig
from whale_jax.doctor.page import Verdict, fail, ok, warn
from whale_jax.domains.domain import CountTokens, Domain
from whale_jax.domains.manifest import MANIFEST_NAME, Manifest, digest
from whale_jax.domains.task import Split, TaskError
from whale_jax.storage.inputs import local_folder


def data(config: RunConfig, count_tokens: CountTokens | None) -> tuple[list[Verdict], Domain | None]:
    """Verdicts on `--task_dir`, or without one on the demo's tasks; and the domain where it can be used.

    Args:
        count_tokens: by the checkpoint's tokenizer; None where it cannot be read: then the tasks are not either.
    """
    verdicts = []
    if config.data.task_dir is not None:
        verdicts.append(
            prepared(local_folder("task_dir", config.data.task_dir, config.run.work_dir), config.run.domain)
        )
    if count_tokens is None:
        missing = warn("tasks", "not read: the checkpoint's tokenizer is missing", "mend the tokenizer first")
        return [*verdicts, missing], None
    verdict, domain = tasks(config, count_tokens)
    return [*verdicts, verdict], domain


def prepared(folder: Path, domain: str) -> Verdict:
    """Every file of a prepared folder against its manifest."""
    try:
        manifest = Manifest.read(folder)
    except OSError:
        return warn(
            "prepared", f"{folder} has no {MANIFEST_NAME}", f"`python -m whale_jax.prepare {domain}` records hashes"
        )
    except (ValueError, KeyError, TypeError) as error:
        return fail("prepared", f"{folder / MANIFEST_NAME} cannot be read ({error!r})", "prepare the data again")
    if manifest.domain != domain:
        return fail(
            "prepared", f"{folder} was prepared for {manifest.domain}", f"--domain={manifest.domain}, or other data"
        )
    wrong = []
    for file in manifest.outputs:
        try:
            if digest(folder / file.path) != (file.bytes, file.sha256):
                wrong.append(f"{file.path} changed")
        except OSError as error:
            wrong.append(f"{file.path}: {error.strerror}")
    if wrong:
        return fail("prepared", "; ".join(wrong), "copy the folder again, or prepare it again")
    return ok("prepared", f"{len(manifest.outputs)} files as prepared (seed {manifest.seed}), SHA-256 compared")


def tasks(config: RunConfig, count_tokens: CountTokens) -> tuple[Verdict, Domain | None]:
    """Loads the domain as a run does."""
    try:
        domain = read_domain(config, count_tokens)
    except (SandboxUnavailable, TaskError) as error:
        return fail("tasks", str(error), "mend the files that it names, or --max_bad_rows"), None
    counts = {split: len(domain.tasks(split)) for split in Split}
    seen = ", ".join(f"{count} {split.value}" for split, count in counts.items())
    seen += "" if config.data.task_dir else " (the demo's)"
    if domain.bad_rows:
        seen += f", {len(domain.bad_rows)} bad rows left out"
    short = [
        f"--{split.value}_tasks={limit}"
        for split, count in counts.items()
        if (limit := getattr(config.data, f"{split.value}_tasks")) > count
    ]
    if short:
        return fail("tasks", seen, f"{', '.join(short)} asks for more; 0 takes all"), None
    return ok("tasks", seen), domain
