"""What packed weights and narrow beams cost in word errors: one model, one set of real speech, the same weights.

    python -m benchmarks.formats --model FOLDER --speech MANIFEST --lm FOLDER --weights 0.3 0.12 0 --out FILE

Decodes at each beam with float32 and with int8; a transducer also with int8 and its best hypotheses ranked again by
float32 layers; an attention decoder of ours also with int8 LSTMs and float32 linear layers, and in float32 with an
internal LM in int8. The encoder runs once, in float32, and is not counted. Our own networks are searched without
guards. Reported for each: WER, CPU seconds per utterance on one thread, utterances whose words differ from those of
float32 at the same beam, and, in float32, search errors: utterances where the widest beam found another sequence, with
a better fused score.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import own_cpu_seconds, publish
from benchmarks.tuning import unguarded
from ilme.data.utterances import read_utterances
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.models.packed import pack, packed_copy
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import Parts, load_recogniser
from ilme.recogniser.options import SearchSettings
from ilme.recogniser.recogniser import Encoded, Recogniser
from ilme.runtime.formats import Format
from ilme.search.hypothesis import NBest
from ilme.search.rerank import ExactRanking

ROUNDING = 1e-3  # nats by which two float32 scores of one sequence may differ
FORMATS: dict[str, tuple[Format, Format | None]] = {  # of the products, and of the linear layers, if another
    "float32": ("float32", None),
    "int8": ("int8", None),
    "int8, ranked again": ("int8", None),
    "int8, linear float32": ("int8", "float32"),
    "float32, internal LM int8": ("float32", None),
}
PLAIN, AGAIN, ROUNDED = ["float32", "int8"], "int8, ranked again", "float32, internal LM int8"


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    utterances = read_utterances(options.speech, split=options.split)
    utterances = [u for u in utterances if not options.longest or u.seconds <= options.longest]
    utterances = utterances[:: options.every][: options.limit or None]
    parts = Parts(str(options.model), options.lm, options.subtracted, "cpu")
    alpha = options.length_normalisation
    recogniser = load_recogniser(parts, SearchSettings(length_normalisation=alpha))
    if not is_foreign(recogniser):
        recogniser.options = unguarded(recogniser, alpha or 0.0)
    exact = recogniser.subtracted
    weights = FusionWeights(*options.weights)
    cache = DecodingOptions(batch_size=options.batch, cache="device")
    decoder = SearchDecoder(recogniser, utterances, options=cache)
    for _ in decoder.encoded():  # once, so that no search is charged for it
        pass
    references = {u.id: u.text for u in utterances}
    rows: list[dict[str, Any]] = []
    for name in formats_of(recogniser):
        repack(recogniser, name, exact)
        decoder.recogniser = RankedAgain(recogniser) if name == AGAIN else recogniser
        for beam in options.beams:
            before = own_cpu_seconds()
            lists = decoder.decode(weights, beam)
            seconds = (own_cpu_seconds() - before) / len(utterances)
            texts = {i: words(nbest) for i, nbest in lists.items()}
            wer = measure(references, texts, normaliser_name=options.normaliser).rate
            rows.append(
                {"format": name, "beam": beam, "wer": wer, "cpu_seconds_per_utterance": seconds, "lists": lists}
            )
            print(f"{name:26} beam {beam:3}  WER {wer:6.2f} %  {seconds:.3f} s", flush=True)
    compare(rows)
    publish({"utterances": len(utterances), "rows": rows}, options.out)


def is_foreign(recogniser: Recogniser) -> bool:
    """Whether others made the model: it packs itself."""
    return hasattr(recogniser.model, "pack")


def formats_of(recogniser: Recogniser) -> list[str]:
    if is_foreign(recogniser):
        return PLAIN
    return [*PLAIN, AGAIN] if recogniser.is_transducer else [name for name in FORMATS if name != AGAIN]


def repack(recogniser: Recogniser, name: str, subtracted: Any) -> None:
    """The model and its scorers in another format; scorers have one for all their layers."""
    format, linear = FORMATS[name]
    if is_foreign(recogniser):
        recogniser.model.pack(format)
        return
    pack(recogniser.model, format, linear)
    for scorer in (recogniser.lm, subtracted):
        if isinstance(scorer, torch.nn.Module):
            pack(scorer, format)
    recogniser.subtracted = subtracted
    if name == ROUNDED and getattr(subtracted, "host", None) is recogniser.model:
        recogniser.subtracted = rounded = copy.copy(subtracted)
        rounded.host = packed_copy(recogniser.model, "int8")


class RankedAgain(Recogniser):
    """A transducer in int8 whose best hypotheses its float32 layers rank again."""

    def __init__(self, other: Recogniser) -> None:
        vars(self).update(vars(other))
        self.finer = packed_copy(other.model, "int8", linear="float32")

    def search(self, encoded: Encoded, weights: FusionWeights | None = None, beam: int = 0) -> list[NBest]:
        ranking = ExactRanking(self.finer, self.weights if weights is None else weights)
        return ranking(super().search(encoded, weights, beam), self.memory(encoded))


def compare(rows: list[dict[str, Any]]) -> None:
    """Replaces the lists of each row by what they say beside float32's."""
    exact = {row["beam"]: row["lists"] for row in rows if row["format"] == "float32"}
    widest = exact[max(exact)]
    for row in rows:
        lists: dict[str, NBest] = row.pop("lists")
        row["differ_from_float32"] = sum(words(lists[i]) != words(exact[row["beam"]][i]) for i in lists)
        if row["format"] == "float32":
            row["search_errors"] = sum(missed(lists[i], widest[i]) for i in lists)


def words(nbest: NBest) -> str:
    return nbest[0].text if nbest else ""


def missed(found: NBest, better: NBest) -> bool:
    """Whether the second list's best is another sequence than the first's, and scores higher."""
    if not found or not better:
        return bool(better)
    return found[0].tokens != better[0].tokens and found[0].score < better[0].score - ROUNDING


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint")
    parser.add_argument("--speech", required=True, type=Path, help="utterances with texts: a manifest or its folder")
    parser.add_argument("--split", default="", help="only utterances of this split")
    parser.add_argument("--limit", type=int, default=0, help="at most so many utterances")
    parser.add_argument("--longest", type=float, default=0.0, help="leave out utterances of more seconds than this")
    parser.add_argument("--every", type=int, default=1, help="take only each of so many utterances: 4 takes a quarter")
    parser.add_argument("--lm", default="", help="the external LM")
    parser.add_argument("--subtracted", default="internal")
    names = ("LM", "SUBTRACTED", "LENGTH")
    parser.add_argument("--weights", type=float, nargs=3, default=(0.0, 0.0, 0.0), metavar=names)
    parser.add_argument("--length-normalisation", type=float, help="of an attention decoder's search")
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 8, 25])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--normaliser", default="none")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
