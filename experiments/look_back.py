"""What a limit on looking back (`attention.look_back`) does to an AED of a study, on a part of its dev set.

python -m experiments.look_back configs/study/paper-longer.yaml out/study/paper-longer \
    docs/results/data/look-back-paper.json --setting intra --method SF --weights 0 0 --weights 0.2 0 --every 2

Rows are added to those of an existing file, so that settings can be measured one after another.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from ilme.data.utterances import read_utterances
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import load_recogniser
from ilme.study.config import read_config
from ilme.study.decoding import search_options, setting_domain, system_parts
from ilme.study.stages import build_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--setting", default="cross")
    parser.add_argument("--method", default="SF")
    parser.add_argument("--weights", nargs=2, type=float, action="append", required=True, help="λ_T and μ; repeatable")
    parser.add_argument("--frames", nargs="+", type=int, default=[0, 8, 16, 32], help="values of look_back; 0: none")
    parser.add_argument("--every", type=int, default=1, help="take one dev utterance in so many")
    parser.add_argument("--beam", type=int, default=8)
    args = parser.parse_args()

    config = read_config(args.plan)
    study = build_study(config, args.folder)
    stage = "speech" if config.recordings.active else "sets"
    listed = read_utterances(args.folder / stage / f"{setting_domain(args.setting)}-dev")[:: args.every]
    references = {u.id: u.text for u in listed}
    about = {"plan": config.name, "setting": args.setting, "method": args.method, "beam": args.beam}
    rows = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else []
    for frames in args.frames:
        options = replace(search_options(config.decoding, "aed"), look_back=frames)
        recogniser = load_recogniser(system_parts(study, "aed", args.setting, args.method), options)
        decoder = SearchDecoder(recogniser, listed, options=DecodingOptions(batch_seconds=300.0, batch_size=32))
        for lm, subtracted in args.weights:
            lists = decoder.decode(FusionWeights(lm=lm, subtracted=subtracted), args.beam)
            errors = measure(references, {name: nbest[0].text for name, nbest in lists.items()}).total
            row = about | {"λ_T": lm, "μ": subtracted, "look_back": frames, "utterances": len(listed)}
            row |= {"WER": round(errors.rate, 2), "substitutions": errors.substitutions}
            row |= {"deletions": errors.deletions, "insertions": errors.insertions}
            print(row, flush=True)
            rows.append(row)
            args.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
