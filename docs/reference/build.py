"""Writes the pages of the command line and of the Python API from the code, and the tables of models.

    python docs/reference/build.py            writes cli.md and api.md beside this file, and the tables
    python docs/reference/build.py --check    says which of them are not current, and ends with status 1

What stands there are signatures and docstrings: to change a page, change those and run this again. Tables of models
stand between `<!-- made: NAME -->` and `<!-- end -->` in the pages of TABLES; their rows are `ilme.adapters.families`.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docstring_parser.google import parse

import ilme
from ilme.adapters.families import FAMILIES
from ilme.cli import JOBS, load
from ilme.commands.arguments import usage
from ilme.commands.help import shown_options
from ilme.commands.options import Option, read_command

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLES = ("README.md", "docs/reference/models.md")
BLOCK = re.compile(r"(<!-- made: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
MADE = "<!-- Made by docs/reference/build.py from the code; do not edit. -->"
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples):\s*$", re.MULTILINE)
CLI_INTRO = """\
Options are written as `--name value` or `name=value`, or read from a file: `--config FILE.yaml`; the command line
counts more than the file. `--print_config` prints such a file. `ilme COMMAND --help` shows the options that matter,
`--help-all` every one. Exit status: 0 done, 1 an input that failed, 2 a command that was called wrongly."""
MODULES = {  # beside the names of `ilme` itself: what a model of one's own needs
    "ilme.protocols": "What a model or a language model must be",
    "ilme.testing": "Tiny models, and checks for your own",
    "ilme.errors": "What can go wrong",
}


def pages() -> dict[str, str]:
    """Name and text of each page."""
    return {"cli.md": "\n".join(cli()) + "\n", "api.md": "\n".join(api()) + "\n"}


def pages_with_tables() -> dict[str, str]:
    """Path from the root and text of each page that has tables of models."""

    def filled(block: re.Match[str]) -> str:
        return f"{block[1]}\n{MODEL_TABLES[block[2]]()}\n\n{block[3]}"

    return {name: BLOCK.sub(filled, (ROOT / name).read_text(encoding="utf-8")) for name in TABLES}


# Tables of models


def short_models() -> str:
    """One row for each name that a reader knows; what all of them can do is not said."""
    rows: dict[str, list[str]] = {}
    for family in FAMILIES:
        rows.setdefault(family.short, []).append(family.kind)
    found = []
    for short, kinds in rows.items():
        first = [family for family in FAMILIES if family.kind in kinds]
        internal = list(dict.fromkeys(how for family in first for how in family.internal))
        gpu = "CPU, GPU" if all(family.gpu == "yes" for family in first) else "CPU"
        found.append((short, gpu, ", ".join(internal)))
    return as_table(("models", "run on", "internal LMs"), found)


def kinds_of_models() -> str:
    rows = [(f"`{f.kind}`", f.title, f.named_by, f.extra) for f in FAMILIES]
    return as_table(("kind", "model", "name it by", "extra"), rows)


def what_models_can() -> str:
    rows = [(f"`{f.kind}`", "yes", "yes", "yes", f.stream, f.int8, f.gpu, ", ".join(f.internal)) for f in FAMILIES]
    return as_table(("kind", "adapt", "transcribe", "tune", "stream", "int8", "GPU", "internal LMs"), rows)


def as_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


MODEL_TABLES = {"models": short_models, "kinds": kinds_of_models, "abilities": what_models_can}


# The command line


def cli() -> Iterator[str]:
    yield from ("# The command line", "", MADE, "")
    yield from (CLI_INTRO, "")
    for job, commands in JOBS.items():
        yield from (f"## {job.capitalize()}", "", "| command | what it does |", "| --- | --- |")
        yield from (
            f"| [`ilme {name}`](#ilme-{name.replace(' ', '-')}) | {cell(about)} |"
            for name, (_, about) in commands.items()
        )
        yield ""
        for name, (target, _) in commands.items():
            yield from command_section(name, load(target))


def command_section(name: str, function: Callable[..., Any]) -> Iterator[str]:
    command = read_command(function)
    yield from (f"### ilme {name}", "", "```sh", usage(name, command), "```", "")
    for paragraph in command.purpose:
        yield from (*textwrap.wrap(prose(paragraph), 120), "")
    if command.example:
        yield from ("```sh", *command.example, "```", "")
    shown = shown_options(command)
    yield from option_table(shown)
    if rest := [option for option in command.values if option not in shown]:
        yield from (f"{len(rest)} more, which `ilme {name} --help-all` shows:", "")
        yield from option_table(rest)


def option_table(options: list[Option]) -> Iterator[str]:
    if not options:
        return
    yield from ("| option | type | default | what it does |", "| --- | --- | --- | --- |")
    for option in options:
        given = option.name.upper() if option.required and not option.group else f"--{option.name}"
        yield f"| `{given}` | {cell(type_name(option))} | {default_of(option)} | {cell(prose(option.help))} |"
    yield ""


def type_name(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.is_flag:
        return "flag"
    names = {int: "whole number", float: "number", str: "text", Path: "path", bool: "true, false"}
    kinds = []
    for kind in option.types:
        inner = [part for part in typing.get_args(kind) if part is not ...]
        if typing.get_origin(kind) in (list, tuple) and inner:
            kinds.append(f"{names.get(inner[0], str(inner[0]))}, several")
        else:
            kinds.append(names.get(kind, re.sub(r"[\w.]*\.(\w+)", r"\1", str(kind))))
    return " or ".join(dict.fromkeys(kinds))


def default_of(option: Option) -> str:
    value = option.default
    if option.required:
        return "required"
    if value is None or value is False or value in ("", (), [], {}):
        return ""
    if value is True:
        return "`true`"
    values = value if isinstance(value, tuple | list) else (value,)
    return f"`{cell(' '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values))}`"


# The Python API


def api() -> Iterator[str]:
    yield from ("# The Python API", "", MADE, "")
    yield from ("Everything that the guides use, from `import ilme`. Names are imported when they are first used.", "")
    names = sorted((name for name in ilme.__all__ if name != "__version__"), key=str.lower)
    yield from ("## ilme", "")
    yield from contents(names, ilme)
    for name in names:
        yield from section(name, getattr(ilme, name), "ilme")
    for path, title in MODULES.items():
        module = importlib.import_module(path)
        yield from (f"## {path}: {title[0].lower()}{title[1:]}", "")
        for name in public(module):
            yield from section(name, getattr(module, name), path)


def contents(names: list[str], module: Any) -> Iterator[str]:
    yield from ("| name | what it is |", "| --- | --- |")
    for name in names:
        first = (inspect.getdoc(called(getattr(module, name))) or "").split("\n\n")[0]
        yield f"| [`ilme.{name}`](#{slug(f'ilme.{name}')}) | {cell(prose(' '.join(first.split())))} |"
    yield ""


def public(module: Any) -> list[str]:
    listed = getattr(module, "__all__", None)
    own = [
        n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and not n.startswith("_")
    ]
    return [name for name in (listed or own) if callable(getattr(module, name))]


def section(name: str, value: Any, owner: str) -> Iterator[str]:
    yield from (f"### {owner}.{name}", "", "```python", *signature(name, called(value)), "```", "")
    yield from docstring(called(value))
    if not inspect.isroutine(value):
        for method, function in methods(value if inspect.isclass(value) else type(value)):
            if called(value) is function:
                continue
            yield from (f"**`{name}.{method}`**", "", "```python", *signature(method, function), "```", "")
            yield from docstring(function)


def called(value: Any) -> Any:
    """What has the signature and the docstring: an object that is called like a function has them in its class."""
    return value if inspect.isclass(value) or inspect.isroutine(value) else type(value).__call__


def methods(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that the class itself documents."""
    for name, value in vars(owner).items():
        if isinstance(value, property):
            value = value.fget
        value = getattr(value, "__func__", value)  # class and static methods
        shown = name == "__call__" or not name.startswith("_")
        if shown and inspect.isfunction(value) and inspect.getdoc(value):
            yield name, value


def signature(name: str, value: Any) -> list[str]:
    """As one would write it, a parameter a line where it is long."""
    kind = "class " if inspect.isclass(value) else "def "
    if inspect.isclass(value) and (issubclass(value, Exception) or is_protocol(value)):
        return [f"class {name}({', '.join(base.__name__ for base in value.__bases__)})", *members(value)]
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return [f"{kind}{name}"]
    parameters = [plain(p) for n, p in found.parameters.items() if n not in ("self", "cls")]
    returned = (
        ""
        if kind == "class " or found.return_annotation is found.empty
        else f" -> {annotation(found.return_annotation)}"
    )
    line = f"{kind}{name}({', '.join(parameters)}){returned}"
    if len(line) <= 100:
        return [line]
    return [f"{kind}{name}(", *(f"    {parameter}," for parameter in parameters), f"){returned}"]


def is_protocol(value: type) -> bool:
    return bool(getattr(value, "_is_protocol", False))


def members(value: type) -> list[str]:
    """The attributes that a protocol asks for, those that it inherits included."""
    asked: dict[str, Any] = {}
    for owner in reversed(value.__mro__) if is_protocol(value) else ():
        asked |= inspect.get_annotations(owner)
        for name, member in vars(owner).items():
            if isinstance(member, property) and not inspect.getdoc(member):
                asked[name] = inspect.signature(member.fget).return_annotation  # type: ignore[arg-type]
    return [f"    {name}: {annotation(hint)}" for name, hint in asked.items() if not name.startswith("_")]


def plain(parameter: inspect.Parameter) -> str:
    stars = "*" * {"VAR_POSITIONAL": 1, "VAR_KEYWORD": 2}.get(parameter.kind.name, 0)
    hint = "" if parameter.annotation is parameter.empty else f": {annotation(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {default_text(parameter.default)}"
    return f"{stars}{parameter.name}{hint}{default}"


def default_text(value: Any) -> str:
    """A default as code; what has no short spelling is left to its name."""
    text = repr(value)
    if "<" in text:  # an object without a spelling, such as a function
        return "…"
    return text if len(text) <= 60 else f"{type(value).__name__}(…)"


def annotation(hint: Any) -> str:
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def docstring(value: Any) -> Iterator[str]:
    """What it does, then what it takes as a table."""
    text = inspect.getdoc(value) or ""
    body = SECTION.split(text)[0].rstrip()
    if body:
        yield from (*(prose(line) for line in body.splitlines()), "")
    told = parse(text)
    if told.params:
        yield from ("| name | what it is |", "| --- | --- |")
        yield from (f"| `{p.arg_name}` | {cell(prose(' '.join((p.description or '').split())))} |" for p in told.params)
        yield ""
    if told.returns and told.returns.description:
        yield from (f"**Returns.** {prose(' '.join(told.returns.description.split()))}", "")


def prose(text: str) -> str:
    """What Markdown would take for a tag, outside code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    made = {HERE / name: text for name, text in pages().items()}
    made |= {ROOT / name: text for name, text in pages_with_tables().items()}
    for file, text in made.items():
        name = file.name
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            file.write_text(text, encoding="utf-8")
    print(f"{'not current' if check else 'wrote'}: {', '.join(stale) or 'nothing'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
