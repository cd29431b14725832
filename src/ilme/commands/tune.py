"""`ilme tune`: fusion weights on a dev set."""

from __future__ import annotations

from pathlib import Path

from ilme.commands.progress import say, steps_table, utterance_progress
from ilme.models.packed import Format
from ilme.recogniser.decoder import DecodingOptions
from ilme.search.attention import AttentionOptions
from ilme.search.transducer import TransducerOptions
from ilme.tuning.tuner import TuningOptions

TUNING, DECODING, TRANSDUCER, ATTENTION = TuningOptions(), DecodingOptions(), TransducerOptions(), AttentionOptions()


def tune(
    model: str,
    dev: Path,
    out: Path,
    lm: str = "",
    subtracted: str = "internal",
    split: str = "",
    limit: int = 0,
    device: str = "cpu",
    format: Format = "float32",
    workers: int = 1,
    ray: int = 0,
    tuning: TuningOptions = TUNING,
    decoding: DecodingOptions = DECODING,
    transducer: TransducerOptions = TRANSDUCER,
    attention: AttentionOptions = ATTENTION,
) -> None:
    """Find fusion weights on a dev set in a few decodes; `ilme evaluate --weights OUT/tuning.json` uses them.

    Can be stopped at any moment and started again. Under torchrun the processes share the work.

    Args:
        model: A checkpoint of ours, or a model of others: hub id, folder, .pt or whisper.cpp .bin.
        dev: Utterances to tune on: NeMo-style JSON lines, Lhotse cuts, or a folder with either.
        out: Folder for tuning.json and the decodes.
        lm: The external LM: a checkpoint of ours, an n-gram file, or a mixture of such (`ilme lm mix`).
        subtracted: What is subtracted: internal, the file of a learned internal LM (`ilme ilm learn`) or of a
            source-domain LM; for models of others also an estimator's name.
        split: Only utterances whose split is this.
        limit: At most this many utterances; 0 takes all.
        device: Where everything runs.
        format: Of the decoder's weights on a CPU: float32, bfloat16 or int8.
        workers: Processes on this machine, started with torchrun.
        ray: Workers on a Ray cluster (the one at RAY_ADDRESS, else this machine); 0 does without Ray.
        tuning: Method, ranges, beam, number of decodes and the like.
        decoding: Batches and cache.
        transducer: Search options of a transducer; the beam is tuning.beam.
        attention: Search options of an attention decoder; the beam is tuning.beam.
    """
    from ilme.commands.workers import share_among
    from ilme.errors import BadInputError

    if share_among(workers):
        return
    if tuning.method != "BS" and not lm:
        raise BadInputError(f"{tuning.method} needs an external LM; name one with --lm")
    if tuning.method == "ILME-learned" and subtracted == "internal":
        raise BadInputError(
            "ILME-learned subtracts a learned internal LM; make one with `ilme ilm learn`, name it with --subtracted"
        )
    from dataclasses import replace

    from ilme.data.utterances import read_utterances
    from ilme.recogniser.decoder import Processes
    from ilme.recogniser.loading import Parts, describe, load_recogniser
    from ilme.tuning.tuner import tune as find_weights
    from ilme.workflows.evaluate import DecoderPlan

    processes = Processes.from_environment()
    parts = Parts(model, lm, "" if tuning.method in ("BS", "SF") else subtracted, device, format)
    utterances = read_utterances(dev, split=split, limit=limit)
    about = describe(parts) | {"dev": str(dev)}
    plan = DecoderPlan(parts, tuple(utterances), out / "decodes", about, decoding, transducer, attention)
    recogniser = load_recogniser(parts, transducer, attention)
    options = replace(tuning, length_exponent=recogniser.length_exponent)
    with (
        utterance_progress(processes.rank == 0) as progress,
        plan.decoder(processes, progress, ray, recogniser) as decoder,
    ):
        result = find_weights(
            decoder,
            {u.id: u.text for u in utterances},
            options=options,
            speakers={u.id: u.speaker for u in utterances},
        )
    if processes.rank == 0:
        result.save(out / "tuning.json")
        say(steps_table(result))
