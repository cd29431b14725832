"""Do real weights give here, without an LM, the texts that their makers' own programs give?

python -m experiments.upstream_texts audio librispeech-dev-clean upstream.npz --count 50
python -m experiments.upstream_texts ours tiny.en.pt upstream.npz pt/ours.json
python -m experiments.upstream_texts theirs openai-whisper tiny.en.pt upstream.npz pt/theirs.json
python -m experiments.upstream_texts report pt mnm --json docs/results/data/upstream-texts.json

`audio` draws utterances of the split `tune` and stores their samples, so that the upstream program, which may live in
another environment, hears the same numbers; `theirs` imports nothing of this project. Both sides take the best label at
every step. Both write their file anew after every utterance and go on where it ends.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Read = Callable[[np.ndarray], str]  # samples of 16 kHz to a text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    todo = parser.add_subparsers(dest="what", required=True)
    audio = todo.add_parser("audio")
    audio.add_argument("speech", type=Path)
    audio.add_argument("out", type=Path)
    audio.add_argument("--count", type=int, default=50)
    audio.add_argument("--longest", type=float, default=8.0, help="seconds")
    audio.add_argument("--seed", type=int, default=1)
    ours = todo.add_parser("ours")
    theirs = todo.add_parser("theirs")
    theirs.add_argument("system", choices=sorted(SYSTEMS))
    for side in (ours, theirs):
        side.add_argument("model")
        side.add_argument("audio", type=Path)
        side.add_argument("out", type=Path)
    ours.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the model's kind")
    report = todo.add_parser("report")
    report.add_argument("folders", type=Path, nargs="+")
    report.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "audio":
        store(args)
    elif args.what == "report":
        from benchmarks.timing import publish

        publish({"systems": [compared(folder) for folder in args.folders]}, args.json, seed=1)
    else:
        about = {"weights": Path(args.model).name or args.model}
        if args.what == "ours":
            read_aloud(own(args.model, dict(o.split("=", 1) for o in args.option)), args, about)
        else:
            read_aloud(SYSTEMS[args.system](args.model), args, about | {"system": args.system})


def store(args: argparse.Namespace) -> None:
    from ilme.data.utterances import read_utterances

    short = [u for u in read_utterances(args.speech, split="tune") if u.seconds <= args.longest]
    drawn = random.Random(args.seed).sample(short, args.count)
    np.savez(args.out, **{u.id: u.samples(16_000) for u in sorted(drawn, key=lambda u: u.seconds)})


def read_aloud(read: Read, args: argparse.Namespace, about: dict[str, Any]) -> None:
    found = json.loads(args.out.read_text()) if args.out.exists() else about | {"texts": {}}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name, samples in np.load(args.audio).items():
        if name not in found["texts"]:
            found["texts"][name] = read(samples).strip()
            args.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")


def compared(folder: Path) -> dict[str, Any]:
    ours, theirs = (json.loads((folder / f"{side}.json").read_text()) for side in ("ours", "theirs"))
    pairs = [(name, text, theirs["texts"][name]) for name, text in ours["texts"].items() if name in theirs["texts"]]
    other = [{"utterance": name, "ours": a, "theirs": b} for name, a, b in pairs if a != b]
    return {
        **{"weights": folder.name, "upstream": theirs["system"], "utterances": len(pairs)},
        **{"same text": len(pairs) - len(other), "others": other},
    }


# Ours


def own(model: str, options: dict[str, str]) -> Read:
    import torch

    from ilme.recogniser.loading import load_model
    from ilme.search.attention import AttentionOptions, AttentionSearch

    torch.set_num_threads(1)
    loaded = load_model(model, **options)
    search = AttentionSearch(loaded, options=AttentionOptions(beam=1, max_length=loaded.max_labels, stop_after=1))

    @torch.inference_mode()
    def read(samples: np.ndarray) -> str:
        nbest = search(loaded.encode(*loaded.features([samples])))[0]
        return str(loaded.tokenizer.decode(list(nbest[0].tokens)))

    return read


# Theirs


def openai_whisper(model: str) -> Read:
    """OpenAI's program; weights of whisper.cpp are put into its network, name by name."""
    import torch
    import whisper

    torch.set_num_threads(1)
    if model.endswith(".bin"):
        from ilme.adapters.whisper_cpp import read_ggml

        dims, weights = read_ggml(Path(model))
        loaded = whisper.model.Whisper(whisper.model.ModelDimensions(**dims))
        loaded.load_state_dict(weights, strict=False)
        given = set(loaded.state_dict()) - set(weights)
        if given - {"alignment_heads"}:
            raise SystemExit(f"{model} lacks {sorted(given)[:3]}")
    else:
        loaded = whisper.load_model(model, device="cpu")
    options = whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)

    def read(samples: np.ndarray) -> str:
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), n_mels=loaded.dims.n_mels)
        return str(whisper.decode(loaded.eval(), mel, options).text)

    return read


def faster_whisper_padded(model: str) -> Read:
    """The same of audio that is followed by silence to 30 s, as OpenAI's program hears it; alone, it gets zeros for
    the features of what is missing, which is not silence."""
    read = faster_whisper(model)
    return lambda samples: read(np.pad(samples, (0, max(0, 480_000 - len(samples)))))


def faster_whisper(model: str) -> Read:
    from faster_whisper import WhisperModel

    loaded = WhisperModel(model, device="cpu", compute_type="float32", cpu_threads=1)

    def read(samples: np.ndarray) -> str:
        segments, _ = loaded.transcribe(
            samples,
            **{"language": "en", "beam_size": 1, "temperature": 0.0, "without_timestamps": True},
            **{"compression_ratio_threshold": None, "log_prob_threshold": None, "no_speech_threshold": None},
        )
        return "".join(segment.text for segment in segments)

    return read


def transformers_moonshine(model: str) -> Read:
    import torch
    from transformers import AutoTokenizer, MoonshineForConditionalGeneration

    torch.set_num_threads(1)
    loaded, words = MoonshineForConditionalGeneration.from_pretrained(model), AutoTokenizer.from_pretrained(model)

    @torch.inference_mode()
    def read(samples: np.ndarray) -> str:
        given = torch.from_numpy(samples)[None]
        out = loaded.generate(given, num_beams=1, do_sample=False, max_new_tokens=190)
        return str(words.decode(out[0], skip_special_tokens=True))

    return read


def onnxruntime_merged(folder: str) -> Read:
    """A plain loop over the encoder and the merged decoder, of Whisper or of Moonshine."""
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    place = next(p.parent for p in sorted(Path(folder).rglob("decoder_model_merged*.onnx")))
    encoder, decoder = (
        onnxruntime.InferenceSession(next(iter(sorted(place.glob(f"{part}*.onnx")))), options)
        for part in ("encoder_model", "decoder_model_merged")
    )
    whisper_like = encoder.get_inputs()[0].name == "input_features"
    words = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    past = [i for i in decoder.get_inputs() if i.name.startswith("past_key_values")]
    present = [i.name.replace("past_key_values", "present") for i in past]
    if whisper_like:
        said = json.loads((Path(folder) / "generation_config.json").read_text())
        start = [
            words.token_to_id(t) for t in ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
        ]
        eos, never, first = said["eos_token_id"], said["suppress_tokens"], said["begin_suppress_tokens"]
        stamps = range(start[-1] + 1, words.get_vocab_size())
        never = [*never, *stamps]
    else:
        start, eos, never, first = [1], 2, [], []

    def features(samples: np.ndarray) -> np.ndarray:
        if not whisper_like:
            return samples[None]
        import whisper

        return np.asarray(whisper.log_mel_spectrogram(whisper.pad_or_trim(samples)))[None]

    def read(samples: np.ndarray) -> str:
        heard, *_ = encoder.run(None, {encoder.get_inputs()[0].name: features(samples)})
        rows, length = (1, 0) if whisper_like else (0, 1)  # an empty cache, as each of the exporters has it
        kept = {i.name: np.zeros((rows, i.shape[1], length, i.shape[3]), np.float32) for i in past}
        ids, new = list(start), list(start)
        while len(ids) < 220:
            given = {"input_ids": np.array([new]), "encoder_hidden_states": heard} | kept
            given["use_cache_branch"] = np.array([len(ids) > len(start)])
            logits, *cache = decoder.run(["logits", *present], given)
            row = logits[0, -1]
            row[never] = -np.inf
            if len(ids) == len(start):
                row[first] = -np.inf
            label = int(row.argmax())
            if label == eos:
                break
            for i, value in zip(past, cache, strict=True):
                if len(ids) == len(start) or ".decoder." in i.name:
                    kept[i.name] = value
            ids, new = [*ids, label], [label]
        return str(words.decode(ids[len(start) :]))

    return read


SYSTEMS: dict[str, Callable[[str], Read]] = {
    "openai-whisper": openai_whisper,
    "faster-whisper": faster_whisper,
    "faster-whisper-padded": faster_whisper_padded,
    "transformers": transformers_moonshine,
    "onnxruntime": onnxruntime_merged,
}


if __name__ == "__main__":
    main()
