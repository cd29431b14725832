"""The command line: a name maps to a typed function. There is no logic here.

Every command is a function whose signature is its options; dataclass parameters become option groups. Options come
from `--config FILE.yaml`, from `--name value`, or from `name=value`. A command's module, and so torch, is imported
only when that command runs.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import re
import select
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ilme.errors import IlmeError

# job: {name: (module:function, one line of help)}
JOBS: dict[str, dict[str, tuple[str, str]]] = {
    "adapt and use": {
        "adapt": ("ilme.commands.adapt:adapt", "make an existing model good at a domain, from text alone"),
        "transcribe": ("ilme.commands.transcribe:transcribe", "audio files to text, with an adapted domain"),
        "demo": ("ilme.commands.demo:demo", "the paper's table from the bundled models and recordings"),
    },
    "measure": {
        "tune": ("ilme.commands.tune:tune", "find fusion weights on a dev set, in a few decodes"),
        "evaluate": ("ilme.commands.evaluate:evaluate", "decode a test set and measure it, with intervals"),
        "compare": ("ilme.commands.compare:compare", "several systems in one table, with paired tests"),
        "report": ("ilme.commands.report:report", "one HTML file that shows all results"),
        "perplexity": (
            "ilme.commands.perplexity:perplexity",
            "how well an LM, or a model's internal LM, predicts a text",
        ),
    },
    "train": {
        "train rnnt": ("ilme.commands.train:train_rnnt", "train an RNN-T"),
        "train aed": ("ilme.commands.train:train_aed", "train an attention encoder-decoder"),
        "train lm": ("ilme.commands.train:train_lm", "train an LSTM language model"),
        "ilm learn": ("ilme.commands.ilm:learn", "a better internal LM of an RNN-T or AED, from its transcripts"),
        "ngram train": ("ilme.commands.ngram:train", "modified Kneser–Ney n-gram model from a token file"),
        "lm mix": ("ilme.commands.lm:mix", "several LMs as one, weighted by how well they predict a text"),
        "info": ("ilme.commands.info:info", "parameters of a network, by component"),
    },
    "text and speech": {
        "text prepare": ("ilme.commands.text:prepare", "clean, split, deduplicate and hold out text"),
        "text bpe": ("ilme.commands.text:bpe", "word pieces (sentencepiece BPE) from text"),
        "text tokenize": ("ilme.commands.text:tokenize", "text to a memory-mapped token file"),
        "data import": ("ilme.commands.data:import_corpus", "read and check a speech corpus, write Lhotse cuts"),
        "data show": ("ilme.commands.data:show", "hours, speakers, words, lengths, and what looks wrong"),
        "data split": ("ilme.commands.data:split", "split cuts by speaker, call or chapter"),
        "data shard": ("ilme.commands.data:shard", "pack cuts and their audio into Lhotse Shar shards"),
        "data synth": ("ilme.commands.synth:synth", "speak a text with espeak-ng, in many voices"),
        "data domains": ("ilme.commands.synth:domains", "text domains from package registries, works held out"),
    },
    "the paper's experiment": {
        "study": ("ilme.commands.study:study", "the paper's experiment, from text to tables, stage by stage"),
        "study status": ("ilme.commands.study:status", "which stages of a study are done"),
        "study gather": ("ilme.commands.study:gather", "what a study on recordings reads, as files that travel"),
        "study pack": ("ilme.commands.study:pack", "finished stages as a few files that travel"),
        "study bundle": ("ilme.commands.study:bundle", "build the embedded default from a study's outputs"),
        "study unpack": ("ilme.commands.study:unpack", "put packed stages into a study's folder"),
    },
}
READER_LEFT = 141  # what a shell says of a program that SIGPIPE ended
COMMANDS = {name: command for commands in JOBS.values() for name, command in commands.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; one whose reader has left (`ilme … | head`) ends without a word."""
    try:
        try:
            status = dispatch(list(sys.argv[1:] if argv is None else argv))
        except SystemExit:  # the parser's, after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not leave_closed_output():
            raise  # some other pipe
        return READER_LEFT


def leave_closed_output() -> bool:
    """Whether nobody reads our output any more; what is still buffered then goes nowhere."""
    closed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            pipe = stream.fileno()
        except (AttributeError, OSError):  # a stream without a file, such as a test's
            continue
        watch = select.poll()
        watch.register(pipe, 0)
        if any(event & select.POLLERR for _, event in watch.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), pipe)
            closed = True
    return closed


def dispatch(args: list[str]) -> int:
    name, rest = split_command(args)
    if name is None:
        return overview(args)
    target, _ = COMMANDS[name]
    try:
        return run(name, load(target), rest)
    except IlmeError as error:
        print(f"ilme {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"ilme {name}: interrupted", file=sys.stderr)
        return 130


def split_command(args: Sequence[str]) -> tuple[str | None, list[str]]:
    """The longest command name that starts the arguments, and what follows it."""
    for length in (2, 1):
        name = " ".join(args[:length])
        if len(args) >= length and name in COMMANDS:
            return name, list(args[length:])
    return None, list(args)


def load(target: str) -> Callable[..., Any]:
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def run(name: str, function: Callable[..., Any], args: list[str]) -> int:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog=f"ilme {name}", description=purpose(function), exit_on_error=True)
    parser.add_argument("--config", action="config", help="YAML file with any of these options.")
    parser.add_function_arguments(function, as_positional=True, fail_untyped=True)
    options = parser.instantiate(parser.parse_args(plain_arguments(function, args)))
    values = {key: value for key, value in vars(options).items() if key not in ("config", "print_config")}
    result = function(**values)
    return result if isinstance(result, int) else 0


def purpose(function: Callable[..., Any]) -> str:
    """What a command does, in its docstring's words; what its options do is said beside them."""
    return re.split(r"\n\s*Args:", inspect.getdoc(function) or "")[0].strip()


def plain_arguments(function: Callable[..., Any], args: Sequence[str]) -> list[str]:
    """Writes the shell's habits the way the parser reads them.

    `--text a.txt b.txt`, `--text a.txt --text b.txt` and a positional list become one JSON list, `train.steps=5`
    becomes `--train.steps=5`, and a bare `--flag` becomes `--flag=true`.
    """
    hints = dict(_options(function))
    parameters = inspect.signature(function).parameters
    lists = {name for name, hint in hints.items() if _is_list(hint)}
    flags = {name for name, hint in hints.items() if hint is bool}
    positional = [name for name, p in parameters.items() if p.default is inspect.Parameter.empty]
    args = [f"--{a}" if re.fullmatch(r"[A-Za-z_][\w.]*=.*", a, re.DOTALL) else a for a in args]

    loose: list[str] = []
    named: list[str] = []
    listed: dict[str, list[str]] = {}
    i = 0
    while i < len(args):
        arg = args[i]
        i += 1
        if not arg.startswith("--") or arg == "--":
            loose.append(arg)
            continue
        name, equals, value = arg[2:].partition("=")
        key = name.replace("-", "_")
        if key in lists and not (equals and value.startswith("[")):
            values = listed.setdefault(key, [])
            values += [value] if equals else []
            while not equals and i < len(args) and not args[i].startswith("--"):
                values.append(args[i])
                i += 1
        elif equals:
            named.append(f"--{key}={value}")
        elif key in flags and (i == len(args) or args[i] not in ("true", "false")):
            named.append(f"--{key}=true")
        elif key in ("help", "print_config"):
            named.append(arg)
        else:
            named.append(f"--{key}" if i == len(args) else f"--{key}={args[i]}")
            i += 1
    named += [f"--{key}={_json_list(values)}" for key, values in listed.items()]
    return named + _positional(loose, list(positional), lists)


def _options(owner: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every option with its type: a command's parameters and, as `group.name`, the fields of its dataclasses."""
    for name, hint in typing.get_type_hints(owner).items():
        yield prefix + name, hint
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                yield from _options(part, f"{prefix}{name}.")


def _positional(values: list[str], names: list[str], lists: set[str]) -> list[str]:
    """Gives a positional list every value that the other positionals do not need."""
    if not any(name in lists for name in names) or not values:
        return values
    spare = len(values) - sum(name not in lists for name in names)
    out, at = [], 0
    for name in names:
        take = max(spare, 0) if name in lists else 1
        chunk = values[at : at + take]
        out += [_json_list(chunk)] if name in lists else chunk
        at += take
    return out + values[at:]


def _json_list(values: Sequence[str]) -> str:
    return json.dumps(list(values))


def _is_list(hint: Any) -> bool:
    if typing.get_origin(hint) in (list, tuple):
        return True
    return any(_is_list(part) for part in typing.get_args(hint) if part is not type(None))


def overview(args: Sequence[str]) -> int:
    """`ilme --help`, `ilme data`, and a word that is no command."""
    prefix = args[0] if args and not args[0].startswith("-") else ""
    known = {n: h for n, (_, h) in COMMANDS.items() if n.startswith(f"{prefix} ") or not prefix}
    if args and args[0] == "--version":
        from importlib.metadata import version

        print(version("ilme"))
        return 0
    if prefix and not known:
        from difflib import get_close_matches

        close = get_close_matches(" ".join(args[:2]), COMMANDS, n=1) or get_close_matches(prefix, COMMANDS, n=1)
        hint = f"; did you mean 'ilme {close[0]}'?" if close else "; 'ilme --help' lists the commands"
        print(f"ilme: no command '{prefix}'{hint}", file=sys.stderr)
        return 2
    print("usage: ilme COMMAND [options]     'ilme COMMAND --help' explains one\n")
    width = max(map(len, known)) + 2
    for job, commands in JOBS.items():
        if chosen := [name for name in commands if name in known]:
            print("\n".join([job, *(f"  {name:<{width}} {known[name]}" for name in chosen), ""]))
    return 0 if not prefix or "--help" in args else 2


if __name__ == "__main__":
    sys.exit(main())
