"""The report: one self-contained HTML page about one or several runs (docs/report.md).

The page holds its programs, its styles and its data, and asks for nothing. A content security policy allows exactly
these programs and styles, by hash; everything that came out of a run is data, compressed, and becomes text on the page.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from whale_jax.report.archives import SearchArchive, archive_json, read_archives
from whale_jax.report.boards import CHUNK as BOARD_CHUNK
from whale_jax.report.boards import BoardStore, chess_boards
from whale_jax.report.branches import branches
from whale_jax.report.comparison import comparison, method
from whale_jax.report.figures import accuracy, behaviour, budgets, matrices
from whale_jax.report.glance import glance
from whale_jax.report.packing import pack
from whale_jax.report.run_files import ReportError, RunFiles, read_run
from whale_jax.report.trajectories import CHUNK, COLUMNS, Packed, pack_trajectories

TRAJECTORIES = 10_000
"""Trajectories in a page, all its runs together."""
MEGABYTES = 25.0
"""Largest size of a page, in 10^6 bytes."""
_SCRIPTS = (
    "text.js", "data.js", "controls.js", "charts.js", "figures.js", "budgets.js", "glance.js", "compare.js",
    "branches.js", "diff.js", "archive.js", "candidate.js", "conversation.js", "trajectories.js", "settings.js",
    "main.js",
)  # fmt: skip
_END_OF_SCRIPT = re.compile(r"</script|<!--", re.IGNORECASE)


def write_report(
    directories: Sequence[Path],
    out: Path,
    *,
    trajectories: int = TRAJECTORIES,
    megabytes: float = MEGABYTES,
    refresh_seconds: int = 0,
) -> None:
    """Writes the page, whole or not at all.

    Args:
        directories: run directories; they are only read.
        out: the file.
        trajectories: how many trajectories it may hold.
        megabytes: how large it may be; trajectories are left out until it is not larger.
        refresh_seconds: an open page loads itself anew after so many seconds; 0: never.

    Raises:
        ReportError: one of them is no run, or the page does not fit even without trajectories.
        OSError: the file cannot be written.
    """
    runs = [read_run(directory) for directory in directories]
    html = make_page(runs, trajectories=trajectories, megabytes=megabytes, refresh_seconds=refresh_seconds)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(html)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)


def write_for_run(directory: Path, say: Callable[[str], None]) -> None:
    """Writes report.html into the directory of a run that has just ended.

    Whatever goes wrong is said and ends nothing: the run and its other files are there.
    """
    out = directory / "report.html"
    try:
        write_report([directory], out)
        say(f"report in {out}")
    except Exception as error:  # a report is not worth a run, whatever the reason
        again = f"python -m whale_jax.report {directory} --out={out}"
        say(f"warning: {out.name} was not written ({type(error).__name__}: {error}); to try again: {again}")


def make_page(runs: Sequence[RunFiles], *, trajectories: int, megabytes: float, refresh_seconds: int) -> bytes:
    """The page's bytes; see `write_report`."""
    archives = [read_archives(run) for run in runs]
    core = {
        "version": 1,
        "runs": [_run_json(run, found) for run, found in zip(runs, archives, strict=True)],
        "comparison": {**comparison(runs), "branches": branches(runs)},
    }
    limit, most = int(megabytes * 1e6), trajectories
    while True:
        html, shown, weight = _assemble(core, runs, archives, most, refresh_seconds)
        if len(html) <= limit:
            return html
        if shown == 0:
            raise ReportError(
                f"the page has {len(html) / 1e6:.1f} MB without any trajectory, and may have {megabytes:g}; "
                "name fewer runs, or raise --max_megabytes"
            )
        room = max(0, limit - (len(html) - weight))
        most = min(shown - 1, int(0.95 * shown * room / weight))


def _assemble(
    core: Mapping[str, Any],
    runs: Sequence[RunFiles],
    archives: Sequence[Sequence[SearchArchive]],
    most: int,
    refresh_seconds: int,
) -> tuple[bytes, int, int]:
    """The page with up to `most` trajectories, how many those are, and the bytes that they and their boards take."""
    store = BoardStore()
    packed: list[Packed] = []
    notes: list[list[str]] = []
    for run, found in zip(runs, archives, strict=True):
        draw, why_not = chess_boards(run.record, store) if most else (None, None)
        packed.append(pack_trajectories(found, most=most // len(runs), boards=draw))
        notes.append([*packed[-1].unreadable, *([why_not] if why_not else [])])
    blocks = {"core": pack({**core, "trajectories": _trajectories_json(packed, notes, len(store))})}
    for number, one in enumerate(packed):
        blocks |= {f"run-{number}-chunk-{place}": text for place, text in enumerate(one.chunks)}
    blocks["licences"] = pack(_asset("vendor/LICENSES.txt"))  # whoever passes the page on passes the library on
    boards = store.packed()
    blocks |= {f"boards-{place}": text for place, text in enumerate(boards)}
    html = _html(blocks, title=", ".join(run.name for run in runs), refresh_seconds=refresh_seconds)
    shown, weight = (sum(one) for one in zip(*((len(run.rows), run.size) for run in packed), strict=True))
    return html, shown, weight + sum(map(len, boards))


def _trajectories_json(packed: Sequence[Packed], notes: Sequence[Sequence[str]], boards: int) -> dict[str, Any]:
    runs = [
        {"rows": one.rows, "found": one.found, "notes": list(lines)}
        for one, lines in zip(packed, notes, strict=True)
    ]  # fmt: skip
    return {"columns": COLUMNS, "chunk": CHUNK, "board_chunk": BOARD_CHUNK, "runs": runs, "boards": boards}


def _run_json(run: RunFiles, archives: Sequence[SearchArchive]) -> dict[str, Any]:
    return {
        "name": run.name,
        "method": method(run.settings),
        "settings": run.settings,
        "inputs": run.record["inputs"],
        "environment": run.record.get("environment", {}),
        "commits": len(run.moments),
        "finished": run.finished,
        "glance": glance(run, archives),
        "accuracy": accuracy(run),
        "behaviour": behaviour(run),
        "budgets": budgets(run),
        "matrices": matrices(run, archives),
        "archives": [archive_json(archive) for archive in archives],
    }


def _html(blocks: Mapping[str, str], *, title: str, refresh_seconds: int) -> bytes:
    """Puts the page together. The policy names each program and the style sheet by the hash of its bytes."""
    style = _asset("style.css")
    scripts = [_asset("vendor/charts.min.js"), "\n".join(_asset(f"scripts/{name}") for name in _SCRIPTS)]
    for script in scripts:
        if _END_OF_SCRIPT.search(script):
            raise ReportError("a script of the page holds text that ends it in HTML: the package is damaged")
    policy = "; ".join([
        "default-src 'none'",
        f"script-src {' '.join(_hash(script) for script in scripts)}",
        f"style-src {_hash(style)}",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ])  # fmt: skip
    refresh = f'<meta http-equiv="refresh" content="{int(refresh_seconds)}">' if refresh_seconds else ""
    page = _asset("page.html")
    parts = {
        "POLICY": policy,
        "REFRESH": refresh,
        "TITLE": _escaped(title),
        "STYLE": style,
        "DATA": "\n".join(
            f'<script type="text/plain" id="data-{name}">{text}</script>' for name, text in blocks.items()
        ),
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub("@([A-Z]+)@", lambda match: parts[match.group(1)], page).encode("utf-8")


def _asset(name: str) -> str:
    return resources.files("whale_jax.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _escaped(text: str) -> str:
    """Text for HTML; what is no character is replaced."""
    text = text.encode("utf-8", "replace").decode()
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text
