"""The command that prepares public data, and what the three preparations share."""

import json

import pytest

from whale_jax import prepare as command
from whale_jax.domains.manifest import Manifest, bad_row_notes, require_new_folder, write_split
from whale_jax.domains.searchqa.prepare import prepare as prepare_searchqa
from whale_jax.domains.task import BadRow, Split, TaskError


def fake(source, out, *, seed):
    require_new_folder(out)
    if not source.is_dir():
        raise TaskError(f"{source}: nothing there")
    out.mkdir()
    rows = [{"question": "é?"}, {"question": "b"}]
    manifest = Manifest("math", seed, (), (write_split(out, Split.TEST, rows),), {"copies": 1}, ("A note.",))
    manifest.write(out)
    return manifest


def run(*arguments):
    files = command.preparation("math").public_files
    return command.main(["prepare", "math", *arguments], find=lambda domain: command.Preparation(fake, files))


def test_the_record_is_printed_and_kept(tmp_path, capsys):
    out = tmp_path / "out"
    assert run(f"--source={tmp_path}", f"--out={out}", "--seed=7") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((out / "prepared.json").read_text())
    assert (json.loads(printed.out)["seed"], json.loads(printed.out)["outputs"][0]["rows"]) == (7, 2)
    assert (out / "test.jsonl").read_text("utf-8") == '{"question": "é?"}\n{"question": "b"}\n'
    assert "from https://" in printed.err
    assert run(f"--source={tmp_path}", f"--out={out}") == 2
    assert "must be a new or an empty folder" in capsys.readouterr().err
    assert run(f"--source={tmp_path / 'no'}", f"--out={tmp_path / 'other'}") == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("domain", command.DOMAINS)
def test_where_each_file_is_to_be_had_is_printed(domain, capsys):
    assert command.main(["prepare", domain]) == 0
    printed = capsys.readouterr().out
    files = command.preparation(domain).public_files
    assert files
    for file in files:
        assert f"{file.path}" in printed
        assert f"from {file.origin}" in printed
        assert f"licence {file.licence}" in printed
        assert file.origin.startswith("https://")


@pytest.mark.parametrize("domain", command.DOMAINS)
def test_every_preparation_refuses_a_folder_that_holds_something(domain, tmp_path):
    (tmp_path / "old").touch()
    with pytest.raises(TaskError, match="must be a new or an empty folder"):
        command.preparation(domain).prepare(tmp_path, tmp_path, seed=42)
    with pytest.raises(TaskError, match="must be a new or an empty folder"):
        command.preparation(domain).prepare(tmp_path, tmp_path / "old", seed=42)


def test_one_place_without_the_other_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(f"--out={tmp_path / 'out'}")
    assert "--source and --out go together" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(monkeypatch):
    assert command.preparation("searchqa").prepare is prepare_searchqa

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name}", name={"chess": "chess", "math": name}[name.split(".")[2]])

    monkeypatch.setattr(command.importlib, "import_module", missing)
    with pytest.raises(TaskError, match=r"needs the package chess: pip install 'whale-jax\[chess\]'"):
        command.preparation("chess")
    with pytest.raises(ModuleNotFoundError):
        command.preparation("math")


def test_bad_rows_are_named_without_the_folder_and_not_without_end():
    rows = [BadRow("/somewhere/x.jsonl", line, "no answer") for line in range(1, 50)]
    notes = bad_row_notes("x.jsonl", rows)
    assert notes[0] == "x.jsonl:1 could not be used: no answer"
    assert len(notes) == 20
