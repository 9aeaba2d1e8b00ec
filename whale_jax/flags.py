"""Command-line flags made from the settings' dataclasses, and back."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from absl import flags

from whale_jax.config import ConfigError, RunConfig, all_settings, value_type


def define(values: flags.FlagValues) -> None:
    """Defines one flag per setting, under the setting's name, type, default and help."""
    for group, spec in all_settings():
        kind, _ = value_type(spec)
        text = spec.metadata["help"]
        options: dict[str, Any] = {"flag_values": values, "module_name": f"settings of the {group}"}
        if get_origin(kind) is Literal:
            default = str(spec.default)
            flags.DEFINE_enum(spec.name, default, list(get_args(kind)), text, **options)
        else:
            maker = {
                bool: flags.DEFINE_bool,
                int: flags.DEFINE_integer,
                float: flags.DEFINE_float,
                str: flags.DEFINE_string,
            }
            maker[kind](spec.name, spec.default, text, **options)


def parse(argv: Sequence[str], values: flags.FlagValues) -> RunConfig:
    """The checked configuration of a command line, `argv[0]` being the program.

    Raises:
      ConfigError: an unknown flag, a value of the wrong kind or out of range, or a leftover argument; one line per
        problem, with the
        flagfile's name where the flag stands in one.
    """
    return settled(given(argv, values), argv)


def given(argv: Sequence[str], values: flags.FlagValues) -> dict[str, Any]:
    """Reads a command line into `values`; returns the settings that stand on it or in its flagfiles, by name.

    Raises:
      ConfigError: an unknown flag, a value of the wrong kind, or a leftover argument.
    """
    try:
        rest = values(list(argv))
    except flags.Error as error:
        raise ConfigError(_placed(re.sub(r"\s+", " ", str(error)), argv)) from error
    except UnicodeDecodeError as error:
        files = ", ".join(arg for arg in argv[1:] if "flagfile" in arg)
        raise ConfigError(f"{files}: not UTF-8 ({error})") from error
    refuse_leftovers(rest)
    return {spec.name: values[spec.name].value for _, spec in all_settings() if values[spec.name].present}


def refuse_leftovers(rest: Sequence[str]) -> None:
    """Raises ConfigError if anything but the program's name is left of a command line whose flags were read."""
    if len(rest) > 1:
        raise ConfigError(f"unexpected arguments: {' '.join(rest[1:])} (flags are written --name=value)")


def settled(settings: Mapping[str, Any], argv: Sequence[str]) -> RunConfig:
    """The checked configuration with these settings, the others at their defaults. Raises ConfigError as `parse`."""
    try:
        return RunConfig.from_values(settings)
    except ConfigError as error:
        raise ConfigError("\n".join(_placed(line, argv) for line in str(error).splitlines())) from None


def to_flagfile(config: RunConfig) -> str:
    """The configuration as a flagfile, groups under comments; None, an optional flag's default, is left out."""
    lines: list[str] = []
    last = ""
    for group, spec in all_settings():
        value = getattr(getattr(config, group), spec.name)
        if value is None:
            continue
        if group != last:
            lines += ["", f"# {group}"] if lines else [f"# {group}"]
            last = group
        lines.append(f"--{spec.name}={str(value).lower() if isinstance(value, bool) else value}")
    return "\n".join(lines) + "\n"


def _placed(problem: str, argv: Sequence[str]) -> str:
    """Puts the flagfile's name before a problem whose flag stands in that file and not on the command line itself."""
    name = re.search(r"--(\w+)", problem)
    if name is None:
        return problem
    flag = re.compile(rf"--?(no)?{name[1]}\b")
    if any(flag.match(arg) for arg in argv[1:]):
        return problem
    for arg in argv[1:]:
        path = re.fullmatch(r"--?flagfile=(.+)", arg)
        stands_there = re.compile(rf"^\s*--?(no)?{name[1]}\b", re.MULTILINE)
        if path and Path(path[1]).is_file() and stands_there.search(Path(path[1]).read_text()):
            return f"{path[1]}: {problem}"
    return problem
