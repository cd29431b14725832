"""Moonshine with its real weights: agreement with onnxruntime and with `generate`, then SF and ILME on tuning speech.

python -m experiments.moonshine --package package/dist --model moonshine-tiny --lm novels.safetensors \
    --speech librispeech-dev-clean --count 80 --json docs/results/data/moonshine-rehearsal.json

`--package` is the unpacked `dist` of @usefulsensors/moonshine-js 0.1.2; its weights are converted into the folder
`--model` if that is not there. The LM is made of Moonshine's own tokens with `benchmarks.whisper_text` and
`ilme ngram train`. Only the split `tune` is decoded: the weights were set by hand, so this is a rehearsal, not a test.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.timing import publish

from ilme.adapters.hf import attention
from ilme.adapters.moonshine import Moonshine
from ilme.adapters.moonshine_onnx import convert
from ilme.data.audio import Samples
from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.significance import bootstrap_interval, compare
from ilme.fusion import FusionWeights
from ilme.ilm import calibrate, internal_lm
from ilme.protocols import TokenScorer
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser

WEIGHTS = Path("model/tiny/float")
FILES = ("encoder_model.onnx", "decoder_model_merged.onnx")
CALIBRATION = 40  # utterances, of the same split but not among those decoded, over which mean-encoder averages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lm", required=True)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--systems", nargs="+", default=["SF:0.1:0"], help="NAME:λ:μ, such as silence:0.2:0.15")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.model.exists():
        convert(*(args.package / WEIGHTS / name for name in FILES), args.package / "moonshine.min.js", args.model)
    model = load_model(str(args.model))
    if not isinstance(model, Moonshine):
        raise SystemExit(f"{args.model} is no Moonshine model")
    everything = read_utterances(args.speech, split="tune")
    drawn = random.Random(args.seed).sample(everything, args.count + CALIBRATION)
    chosen, others = drawn[: args.count], drawn[args.count :]
    report: dict[str, Any] = {
        "what": f"Moonshine tiny, {args.count} utterances of the split tune, drawn at random; weights set by hand",
        "agreement with onnxruntime": agreement(args.package, model, [u.samples(16_000) for u in chosen[:5]]),
    }
    report |= rehearse(args, model, chosen, others)
    publish(report, args.json, seed=args.seed)


def agreement(package: Path, model: Moonshine, audio: Sequence[Samples]) -> dict[str, float]:
    """Largest difference of the encoder's output, and of the first label's logits, from the ONNX files'."""
    import onnxruntime as ort

    encoder, decoder = (ort.InferenceSession(package / WEIGHTS / name) for name in FILES)
    inputs = {i.name: i.shape for i in decoder.get_inputs()}
    worst = {"encoder": 0.0, "first logits": 0.0, "largest logit": 0.0}
    for samples in audio:
        (theirs,) = encoder.run(None, {"input_values": samples[None]})
        hidden, _ = model.hidden(*model.features([samples]))
        empty = {
            name: np.zeros((0, shape[1], 1, shape[3]), np.float32)
            for name, shape in inputs.items()
            if name.startswith("past_key_values")
        }
        start = np.array([model.prefix], dtype=np.int64)
        given = {"input_ids": start, "encoder_hidden_states": theirs, "use_cache_branch": np.array([False])}
        logits = decoder.run(["logits"], given | empty)[0][0, -1]
        ours = model.teacher_forced(torch.empty(1, 0, dtype=torch.long), attention(model.memory(hidden)))[0, -1].numpy()
        worst["encoder"] = max(worst["encoder"], float(np.abs(theirs - hidden.numpy()).max()))
        worst["first logits"] = max(worst["first logits"], float(np.abs(logits - ours).max()))
        worst["largest logit"] = max(worst["largest logit"], float(np.abs(logits).max()))
    return worst


@torch.inference_mode()
def generated(model: Moonshine, audio: Sequence[Samples], beam: int) -> list[str]:
    """Texts of `transformers`' own beam search, one utterance after another."""
    texts = []
    for samples in audio:
        features, _ = model.features([samples])
        out = model.model.generate(features, num_beams=beam, max_new_tokens=model.max_labels, do_sample=False)
        texts.append(model.tokenizer.decode(out[0].tolist()))
    return texts


def rehearse(args: argparse.Namespace, model: Moonshine, chosen: list[Utterance], others: list[Utterance]) -> Any:
    options, cache = default_options(model, args.beam), EncoderCache()
    batches = DecodingOptions(batch_seconds=120, batch_size=16, cache="none")
    references = {u.id: u.text for u in chosen}
    speakers = {u.id: u.speaker for u in chosen}
    results: dict[str, Measurement] = {}
    rows: dict[str, dict[str, Any]] = {}

    def counted(name: str, texts: dict[str, str], seconds: float) -> None:
        results[name] = measure(references, texts, speakers=speakers, normaliser_name="whisper")
        interval = bootstrap_interval(results[name])
        rows[name] = {"WER": round(results[name].rate, 3), "95 %": [round(interval.low, 2), round(interval.high, 2)]}
        rows[name] |= asdict(results[name].total) | {"seconds": round(seconds, 1)}
        for other in ("BS", "SF") if name[:2] in ("SF", "IL") else ():
            best = min(
                (n for n in results if n.startswith(other) and n != name), key=lambda n: results[n].rate, default=""
            )
            if best and not (other == "SF" and name.startswith("SF")):
                found = compare(name, results[name], best, results[best])
                rows[name][f"against {best}"] = {
                    "relative %": round(-found.relative, 2),
                    "p bootstrap": round(found.p_bootstrap, 4),
                }
        print(name, json.dumps(rows[name], ensure_ascii=False), file=sys.stderr, flush=True)

    def decoded(weights: FusionWeights, lm: TokenScorer | None, internal: TokenScorer | None) -> dict[str, str]:
        recogniser = Recogniser(model, lm=lm, subtracted=internal, options=options, cache=cache)
        lists = SearchDecoder(recogniser, chosen, options=batches).decode(weights, args.beam)
        return {name: nbest[0].text for name, nbest in lists.items()}

    began = time.perf_counter()
    texts = generated(model, [u.samples(16_000) for u in chosen], args.beam)
    reference = {u.id: text for u, text in zip(chosen, texts, strict=True)}
    counted("transformers generate", reference, time.perf_counter() - began)
    model.pack()
    began = time.perf_counter()
    ours = decoded(FusionWeights(), None, None)
    counted("BS", ours, time.perf_counter() - began)
    rows["BS"]["same text as generate"] = sum(ours[i] == reference[i] for i in ours)
    different = [
        {"reference": references[i], "BS": ours[i], "generate": reference[i]} for i in ours if ours[i] != reference[i]
    ]
    calibration = calibrate(model, [u.samples(16_000) for u in others])
    lm = load_lm(args.lm, model.tokens, "cpu")
    for item in args.systems:
        kind, added, removed = item.split(":")
        weights = FusionWeights(lm=float(added), subtracted=float(removed))
        internal = None if kind == "SF" else internal_lm(model, kind, calibration=calibration)
        began = time.perf_counter()
        name = f"{'SF' if kind == 'SF' else 'ILME ' + kind} {added}" + ("" if kind == "SF" else f"/{removed}")
        counted(name, decoded(weights, lm, internal), time.perf_counter() - began)
    seconds = sum(u.seconds for u in chosen)
    return {"utterances": len(chosen), "seconds of audio": round(seconds, 1), "systems": rows, "different": different}


if __name__ == "__main__":
    main()
