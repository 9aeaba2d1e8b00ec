"""Small, checked changes of a harness source: the tools with which a domain writes its catalogue of edits.

Each function takes a source and returns the changed one, or None when the change does not apply: the name is not there,
the change is already made, or the result would not parse. Only the text that changes is touched: comments and layout
survive.
"""

from __future__ import annotations

import ast
import json
import textwrap

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def set_constant(source: str, name: str, value: str | int) -> str | None:
    """Gives the top-level constant `name` another literal value."""
    node = _constant(source, name)
    if node is None or node.value == value:
        return None
    literal = json.dumps(value, ensure_ascii=False)  # JSON spells these values as Python does, in double quotes
    return _checked(source, _splice(source, node, literal))


def constant(source: str, name: str) -> str | int | None:
    """The value of the top-level constant `name`, if it is a text or a whole number."""
    node = _constant(source, name)
    return node.value if node is not None and isinstance(node.value, str | int) else None


def append_text(source: str, name: str, text: str) -> str | None:
    """Appends `text` to the top-level text constant `name`, unless it holds it already."""
    value = constant(source, name)
    if not isinstance(value, str) or text.strip() in value:
        return None
    return set_constant(source, name, value + text)


def insert_at_start(source: str, function: str, block: str) -> str | None:
    """Puts the statements of `block` at the start of a top-level function, after its docstring."""
    node = _function(source, function)
    if node is None:
        return None
    body = _body(node)
    return _insert(source, node, body[0].lineno, block)


def insert_before_return(source: str, function: str, block: str) -> str | None:
    """Puts the statements of `block` before the `return` that ends a top-level function."""
    node = _function(source, function)
    if node is None or not isinstance(node.body[-1], ast.Return):
        return None
    return _insert(source, node, node.body[-1].lineno, block)


def set_body(source: str, function: str, block: str) -> str | None:
    """Replaces the body of a top-level function, except its docstring, by the statements of `block`."""
    node = _function(source, function)
    if node is None:
        return None
    body = _body(node)
    lines = source.splitlines(keepends=True)
    end = body[-1].end_lineno or body[-1].lineno
    changed = [*lines[: body[0].lineno - 1], _indented(block), *lines[end:]]
    return _checked(source, "".join(changed))


def replace_in_function(source: str, function: str, old: str, new: str) -> str | None:
    """Replaces `old`, which must occur exactly once in a top-level function."""
    node = _function(source, function)
    if node is None:
        return None
    lines = source.splitlines(keepends=True)
    start, end = node.lineno - 1, node.end_lineno or node.lineno
    text = "".join(lines[start:end])
    if text.count(old) != 1:
        return None
    return _checked(source, "".join([*lines[:start], text.replace(old, new), *lines[end:]]))


def ensure_import(source: str, module: str) -> str | None:
    """`source` with `import module` at its top; unchanged when it is there already."""
    tree = _parse(source)
    if tree is None:
        return None
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    if module in imported:
        return source
    first = next((node for node in tree.body if not _is_docstring(node)), None)
    lines = source.splitlines(keepends=True)
    at = len(lines) if first is None else first.lineno - 1
    gap = "" if isinstance(first, ast.Import | ast.ImportFrom) else "\n"
    return _checked(source, "".join([*lines[:at], f"import {module}\n{gap}", *lines[at:]]))


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _checked(before: str, after: str) -> str | None:
    return after if after != before and _parse(after) is not None else None


def _constant(source: str, name: str) -> ast.Constant | None:
    tree = _parse(source)
    for node in tree.body if tree else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Constant() as value) if found == name:
                return value
    return None


def _function(source: str, name: str) -> _Function | None:
    tree = _parse(source)
    for node in tree.body if tree else ():
        if isinstance(node, _Function) and node.name == name:
            return node
    return None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _body(node: _Function) -> list[ast.stmt]:
    """The statements after the docstring; the docstring itself if there is nothing else."""
    return node.body[1:] if _is_docstring(node.body[0]) and len(node.body) > 1 else node.body


def _indented(block: str) -> str:
    return textwrap.indent(textwrap.dedent(block).strip("\n") + "\n", "    ")


def _insert(source: str, node: _Function, line: int, block: str) -> str | None:
    lines = source.splitlines(keepends=True)
    text = _indented(block)
    if text in "".join(lines[node.lineno - 1 : node.end_lineno]):
        return None
    return _checked(source, "".join([*lines[: line - 1], text, *lines[line - 1 :]]))


def _splice(source: str, node: ast.expr, text: str) -> str:
    """`source` with the text of `node` replaced. Column offsets of `ast` count UTF-8 bytes."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head = lines[first][: node.col_offset]
    tail = lines[last][node.end_col_offset :]
    return b"".join([*lines[:first], head, text.encode(), tail, *lines[last + 1 :]]).decode()
