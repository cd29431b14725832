"""Faults that were once put into the core and noticed by no test, or by distant ones only.

    python -m tests.mutation.run --known        tries them all again

Each is the code of today and what it is replaced by.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.mutation.changes import Change


@dataclass(frozen=True)
class Fault:
    """One of them.

    Attributes:
        what: What goes wrong.
        file: The file, from src/ilme on.
        before, after: The code that is replaced, which stands there once, and by what.
    """

    what: str
    file: str
    before: str
    after: str

    def change(self, package: Path) -> Change:
        source = (package / self.file).read_text("utf-8")
        if source.count(self.before) != 1:
            raise ValueError(f"{self.file} has {self.before!r} {source.count(self.before)} times, not once")
        line = source[: source.index(self.before)].count("\n") + 1
        return Change(self.what, self.file, line, self.before, self.after, source.replace(self.before, self.after))


KNOWN = (
    Fault("the beam is pruned by the model's score alone", "search/transducer.py",
          "beam.take(self.total(beam).topk(", "beam.take(beam.path.topk("),
    Fault("the floor is the model's score alone", "search/transducer.py",
          "K, total = self.options.beam, self.total(done)", "K, total = self.options.beam, done.path"),
    Fault("every bootstrap p is halved", "evaluation/significance.py",
          "2 * (tail + 1) / (replicates + 1)", "(tail + 1) / (replicates + 1)"),
    Fault("hypotheses are not normalised", "evaluation/metrics.py",
          "[normalise(hypotheses[i]) for i in ids]", "[hypotheses[i] for i in ids]"),
    Fault("BS loses its length weight", "tuning/weight_search.py",
          "length=self.length,\n        )\n\n    @property",
          'length=none if method == "BS" else self.length,\n        )\n\n    @property'),
    Fault("the penalty is not scaled by the words", "tuning/weight_search.py",
          "self.penalty * words / 100 * np.abs", "self.penalty * np.abs"),
    Fault("dev text leaks into the LM", "workflows/adapt.py", "spoken = [u.text for u in utterances]", "spoken = []"),
    Fault("the worst internal LM is chosen", "workflows/with_dev.py",
          "best = min(ranking, key=", "best = max(ranking, key="),
    Fault("internal LMs are ranked without the search's length exponent", "workflows/with_dev.py",
          "            length_exponent=self.recogniser.length_exponent,\n", ""),
    Fault("weights are tuned without the search's length exponent", "workflows/tune.py",
          "length_exponent=recogniser.length_exponent", "length_exponent=0.0"),
    Fault("internal LMs are ranked without the end", "workflows/with_dev.py",
          "finish=end, rows=256", "finish=False, rows=256"),
    Fault("too few speakers are resampled all the same", "workflows/with_dev.py",
          "return {} if len(set(found.values())) < FEW_SPEAKERS else found", "return found"),
    Fault("calibration reads all of dev", "workflows/with_dev.py",
          "self.whole[: self.options.calibration]", "self.whole"),
    Fault("the prompt's first labels are kept", "adapters/whisper.py", "[-room:]", "[:room]"),
    Fault("marks are not suppressed", "adapters/whisper.py",
          "self.non_speech() if options.suppress_non_speech else []", "[]"),
    Fault("special ids are not suppressed", "adapters/whisper.py",
          'special = {i for name, i in self.ids.items() if name != "<|endoftext|>"} - stamps', "special = set()"),
    Fault("a transcript takes all positions", "adapters/whisper.py",
          "max_labels=min(positions // 2, positions - len(prefix))", "max_labels=positions"),
    Fault("the mean context is divided by the labels without the prefix", "ilm/transformer.py",
          "count += len(model.prefix) + len(labels)", "count += len(labels)"),
    Fault("the first label may be what only later ones may", "ilm/transformer.py",
          "host.allowed_first.clamp(min=FLOOR)", "host.allowed.clamp(min=FLOOR)"),
    Fault("extra weights of a file are ignored", "models/checkpoint.py", "if missing or extra:", "if missing:"),
    Fault("the subtracted scorer's vocabulary is not checked", "fusion.py",
          'check_same_vocabulary(tokens, scorer.tokens, "model", f"{name} scorer")',
          'name == "lm" and check_same_vocabulary(tokens, scorer.tokens, "model", f"{name} scorer")'),
    Fault("an n-gram LM is not written at once", "lm/ngram_file.py",
          "with atomic_path(Path(path)) as partial:", "for partial in (Path(path),):"),
    Fault("loading a checkpoint draws random numbers", "models/checkpoint.py",
          "with torch.random.fork_rng(devices=[]):", "if True:"),
    Fault("decodes with another beam are compared", "tuning/tuner.py",
          "[s for s in steps if s.beam == options.beam] or steps", "steps"),
    Fault("a decode costs what the lists promise", "tuning/tuner.py",
          "return step.counts.errors + float(options.objective",
          "return step.list_wer * step.counts.words / 100 + float(options.objective"),
    Fault("lists of decodes that overreached are merged", "tuning/tuner.py",
          "if not lists or not failed[-1]:", "if True:"),
    Fault("an attention search goes on for one label past its limit", "search/attention.py",
          "total.masked_fill((step >= limit)[:, None], -torch.inf), total",
          "total.masked_fill((step > limit)[:, None], -torch.inf), total"),
    Fault("an ended hypothesis is compared at another length than the open ones", "search/attention.py",
          "math.pow(step + 2, self.options", "math.pow(step + 1, self.options"),
)  # fmt: skip
