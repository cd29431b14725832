"""Domain text as token files in a pre-existing model's own inventory, for `ilme train lm` and `ilme ngram train`.

python -m benchmarks.whisper_text --model tiny.en.pt --text novels.tar.xz --exclude librispeech-dev-clean --out novels
ilme train lm --data.train novels/train.tokens --data.held_out novels/valid.tokens --out out/whisper-lm

The text is written as the model writes (see `ilme.data.written_style`), and sentences that share eight words in a row
with the speech to be recognised are left out. --fold leaves out case and punctuation too (`ilme.lm.case_folding`).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from pathlib import Path

from ilme.data.tokenfile import write_tokens
from ilme.data.utterances import read_utterances
from ilme.data.written_style import domain_lines
from ilme.lm.case_folding import Folds
from ilme.recogniser.loading import load_model
from ilme.workflows.domain_lm import unwritable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--exclude", type=Path, nargs="*", default=[], help="manifests or folders of evaluation speech")
    parser.add_argument("--fold", action="store_true", help="tokens without case and punctuation")
    parser.add_argument("--valid", type=int, default=2000, help="lines that are held out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = load_model(args.model)
    evaluation = [u.text for path in args.exclude for u in read_utterances(path)]
    text = domain_lines(args.text, never=unwritable(model), evaluation=evaluation, seed=args.seed)
    lines = list(text.lines)
    random.Random(args.seed).shuffle(lines)
    folds = Folds(model.tokens)
    args.out.mkdir(parents=True, exist_ok=True)
    parts = {"valid": lines[: args.valid], "train": lines[args.valid :]}
    for name, part in parts.items():
        sentences: Iterable[list[int]] = (model.tokenizer.encode(line) for line in part)
        if args.fold:
            sentences = filter(None, map(folds, sentences))
        count, tokens = write_tokens(args.out / f"{name}.tokens", sentences, model.tokens)
        print(f"{name}: {count} lines, {tokens} tokens")
    print(f"{text.words} words, {text.excluded} sentences left out for overlap, case restored: {text.recased}")
    for problem in text.problems:
        print(f"not read: {problem}")


if __name__ == "__main__":
    main()
