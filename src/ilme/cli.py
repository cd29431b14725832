"""The command line: a name maps to a typed function whose signature is its options. There is no logic here.

A command's module is imported only when that command runs. Exit statuses: 0 done, 1 an input or a file that failed, 2 a
command that was called wrongly, 130 Ctrl-C, 141 nobody reads the output, 143 SIGTERM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ilme import __version__
from ilme.commands.shell import discard_output, end_on_signals, open_streams, reader_left
from ilme.errors import IlmeError, UsageError

# job: {name: (module:function, one line of help)}
JOBS: dict[str, dict[str, tuple[str, str]]] = {
    "adapt and use": {
        "adapt": ("ilme.commands.adapt:adapt", "make an existing model good at a domain, from text alone"),
        "transcribe": (
            "ilme.commands.transcribe:transcribe",
            "audio files to text, with an adapted domain or a model as it is",
        ),
        "serve": ("ilme.commands.serve:serve", "domains as a service that OpenAI's clients can call"),
        "phrases suggest": (
            "ilme.commands.phrases:suggest",
            "names and rare words of a text that a model is likely to miss",
        ),
        "demo": ("ilme.commands.demo:demo", "the paper's table from the bundled models and recordings"),
        "doctor": ("ilme.commands.doctor:doctor", "what this machine has, and what to do about each problem"),
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
        "lm replace": ("ilme.commands.lm:replace", "another LM inside a decoder that was trained around one"),
        "export onnx": ("ilme.commands.export:onnx", "an RNN-T as ONNX files, for use elsewhere"),
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
        "study gather": ("ilme.commands.study:gather", "what a study on recordings reads, packed into a few files"),
        "study pack": ("ilme.commands.study:pack", "finished stages, packed into a few files"),
        "study bundle": ("ilme.commands.study:bundle", "the models and recordings of `ilme demo`, from a study"),
        "study unpack": ("ilme.commands.study:unpack", "put packed stages into a study's folder"),
    },
}
COMMANDS = {name: command for commands in JOBS.values() for name, command in commands.items()}
FAILED, MISUSED, INTERRUPTED, READER_LEFT = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit status."""
    open_streams()
    try:
        with end_on_signals():
            status = dispatch(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
            return status
    except SystemExit as stop:  # SIGTERM
        return stop.code if isinstance(stop.code, int) else FAILED
    except BrokenPipeError:  # `ilme … | head`
        reader_left()
        return READER_LEFT
    except OSError as error:
        discard_output(sys.stdout.fileno())
        return complain("", f"the output cannot be written: {described(error)}", FAILED)


def dispatch(args: list[str]) -> int:
    name, rest = split_command(args)
    try:
        return overview(args) if name is None else run(name, load(COMMANDS[name][0]), rest)
    except UsageError as error:
        return complain(name, error, MISUSED)
    except IlmeError as error:
        return complain(name, error, FAILED)
    except KeyboardInterrupt:
        return complain(name, "interrupted", INTERRUPTED)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and reader_left():
            raise
        return complain(name, described(error), FAILED)


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
    from ilme.commands.arguments import parse_arguments
    from ilme.commands.help import command_help

    if {"-h", "--help", "--help-all"} & set(args):
        print(command_help(name, function, every="--help-all" in args))
        return 0
    try:
        values = parse_arguments(name, function, args)
    except SystemExit:  # after --print_config
        return 0
    result = function(**values)
    return result if isinstance(result, int) else 0


def complain(name: str | None, what: object, status: int) -> int:
    """Says on one line of stderr what went wrong; returns the status."""
    line = f"ilme {name or ''}".rstrip() + f": {' '.join(str(what).split())}\n"
    print(line, end="", file=sys.stderr)  # in one piece: under torchrun others print at the same time, unbuffered
    return status


def described(error: OSError) -> str:
    """`FILE: No such file or directory`."""
    return ": ".join(str(part) for part in (error.filename, error.strerror) if part) or str(error)


def overview(args: Sequence[str]) -> int:
    """`ilme --help`, `ilme data --help`, `ilme --version`; anything else that is no command is a mistake."""
    first, more = (args[0], args[1:]) if args else ("--help", ())
    if first == "--version":
        print(__version__)
        return 0
    asks = ("-h", "--help", "--help-all")
    group = {name: text for name, (_, text) in COMMANDS.items() if name.startswith(f"{first} ")}
    if first not in asks and not (group and set(more) & set(asks)):
        raise UsageError(_no_command(first, more, list(group)))
    known = group or {name: text for name, (_, text) in COMMANDS.items()}
    width = max(map(len, known))
    print("usage: ilme COMMAND [options]     `ilme COMMAND --help` explains one\n")
    for job, commands in JOBS.items():
        if chosen := [name for name in commands if name in known]:
            print("\n".join([job, *(f"  {name:<{width}}  {known[name]}" for name in chosen), ""]))
    return 0


def _no_command(first: str, more: Sequence[str], group: Sequence[str]) -> str:
    from ilme.commands.arguments import did_you_mean

    if first.startswith("-"):
        return f"there is no option {first} before a command; `ilme --help` lists the commands"
    if group and not more:
        return f"{first} is {len(group)} commands; name one of {', '.join(group)}"
    words = " ".join((first, *more[:1])) if group else first
    hint = did_you_mean(" ".join((first, *more[:1])), COMMANDS, "ilme ") or did_you_mean(first, COMMANDS, "ilme ")
    return f"there is no command {words}{hint or '; `ilme --help` lists the commands'}"


if __name__ == "__main__":
    sys.exit(main())
