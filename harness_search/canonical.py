"""Canonical bytes and hashes: of JSON values, and of harness sources up to layout.

Everything written to an archive goes through `json_bytes`, so the same content is the same bytes on every machine.
"""

from __future__ import annotations

import ast
import hashlib
import json
import warnings
from typing import Any


def json_bytes(value: Any) -> bytes:
    """One canonical UTF-8 form: sorted keys, no spaces, a final newline. NaN and infinity are refused (ValueError)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # A lone surrogate (a reply cut inside a byte sequence) has no UTF-8 form: it becomes a visible escape.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def source_bytes(source: str) -> bytes:
    """A source as a file. A lone surrogate, which makes a candidate invalid, is kept as it came."""
    return source.encode("utf-8", "surrogatepass")


def fingerprint(source: str) -> str:
    """Hash of what a source does: two sources that differ only in comments, layout or docstrings share it.

    A source that does not parse is hashed as text with its runs of white space collapsed. Docstrings count when the
    source reads `__doc__`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bad escape in a string is its author's affair
            tree = ast.parse(source)
        if "__doc__" not in source:
            _drop_docstrings(tree)
        body = "ast:" + ast.dump(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        body = "text:" + " ".join(source.split())
    return sha256(source_bytes(body))


def _drop_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                    node.body = rest
