"""What a search costs, beside the peers' own decoders on the same weights: one run, one table, one JSON file.

    python -m benchmarks.search --torchaudio-python PATH --espnet-python PATH --speechbrain-python PATH
    python -m benchmarks.search --device cuda            # utterances a second for batches of 1, 16 and 64

Networks of the paper's size (RNN-T 2×LSTM-1024 and joint 1024, AED 2×LSTM-1280 with location-aware attention, LM
2×LSTM-2048, vocabulary 4000), 334 encoder frames, encoder not counted. Cost is the program's own CPU time on one
thread. A peer is a Python interpreter that has it installed; see docs/results/decoding-speed.md. Every hypothesis found
by any system is scored again exactly, in float32, so that a faster search cannot hide a worse result.

The methods take turns: no LM, SF, ILME on one utterance (or batch), then on the next, then all of it again, so that
what else the machine does falls on all of them alike. A row's cost is the mean over utterances of the least CPU time;
ILME's excess over SF is the median over all pairs. ILME also looks at other hypotheses than SF, which may have more
parents or fewer: for the AED the excess is measured a second time with a subtracted weight so small that all the work
is done and SF's hypotheses are found. The two then take the same steps, and each step's least time of all rounds is
summed: on a shared machine no whole decode is ever left alone, but each step is once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks import workload
from benchmarks.timing import command, commit, fastest, forget_peak, machine, own_cpu_seconds, peak_since_mb
from ilme.fusion import Fusion, FusionWeights
from ilme.ilm.attention import AttentionInternalLM
from ilme.ilm.transducer import TransducerInternalLM
from ilme.models.packed import pack, packed_copy
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.rerank import ExactRanking
from ilme.search.transducer import TransducerOptions, TransducerSearch

HERE = Path(__file__).resolve().parent
LM_WEIGHT, SUBTRACTED_WEIGHT = 0.3, 0.12  # λ_T, and λ_I = 0.4 λ_T: the paper's ratios are 0.38–0.77
BLANK_GATE = 0.05
BEAM = 25
ROUNDING = 1e-4  # nats by which two float32 scores of one sequence may differ
MIXED, MIXED_BEAM = "int8, linear layers float32", 32  # the AED in int8 that loses nothing to a float32 search of 25
METHODS = {
    "no LM": FusionWeights(),
    "SF": FusionWeights(lm=LM_WEIGHT),
    "ILME": FusionWeights(lm=LM_WEIGHT, subtracted=SUBTRACTED_WEIGHT),
}
EQUAL = "ILME at SF's hypotheses"
WEIGHTS = {**METHODS, EQUAL: FusionWeights(lm=LM_WEIGHT, subtracted=1e-9)}
ROUNDED = "ilme, internal LM int8"  # a float32 search whose internal LM is an int8 copy
AGAIN = "ranked again"  # the best of an int8 search are scored once more, by float32 layers (ilme.search.rerank)
PEERS = {  # script: (option, task, methods)
    "torchaudio_rnnt": ("torchaudio", "RNN-T", ("no LM",)),
    "espnet_rnnt": ("espnet", "RNN-T", ("no LM", "SF")),
    "speechbrain_aed": ("speechbrain", "AED", ("no LM", "SF")),
}


@dataclass
class Row:
    """One measurement; `gap` is how far the exact fused scores lie below the best known, in nats, per utterance."""

    system: str
    task: str
    method: str
    format: str
    beam: int
    batch: int
    frames: int
    cpu_seconds_per_utterance: float
    labels: list[list[int]] = field(repr=False)
    exact: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    peer_ratio: float | None = None
    peer_gap: float | None = None  # the most by which any peer's exact score beats ours on any utterance, in nats
    over_sf: float | None = None  # cost over that of SF: median over pairs of decodes that followed each other
    over_sf_at_its_hypotheses: float | None = None
    over_sf_step_by_step: float | None = None  # the same, of sums over steps of each step's least time
    pairs: int = 0

    @property
    def is_ours(self) -> bool:
        return self.system.startswith("ilme")

    def said(self) -> str:
        more = f", {self.over_sf:+.1%} over SF" if self.over_sf is not None else ""
        if self.over_sf_at_its_hypotheses is not None:
            more += f" ({self.over_sf_at_its_hypotheses:+.1%} at SF's hypotheses"
            more += f", step by step {self.over_sf_step_by_step:+.1%})"
        where = f"{self.task} {self.method} {self.format} beam {self.beam} batch {self.batch} {self.system}"
        return f"  {where}: {self.cpu_seconds_per_utterance:.3f} s{more}"


class TimedSearch(AttentionSearch):
    """Notes the CPU time of each step of its last decode."""

    def __call__(self, *args, **options):
        self.marks = [time.thread_time()]
        lists = super().__call__(*args, **options)
        self.marks.append(time.thread_time())
        return lists

    def _step(self, *args):
        self.marks.append(time.thread_time())
        return super()._step(*args)

    @property
    def steps(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.marks)]


class Bench:
    def __init__(self, work: workload.Workload, repeats: int) -> None:
        self.work, self.repeats = work, repeats
        self.exact_scores: dict[tuple[object, ...], float] = {}
        self.steps: list[float] = []  # CPU seconds of each step of the last decode, of an AED
        for model in (work.rnnt, work.aed):
            workload.without_encoder(model)

    def pack(self, format: str) -> None:
        for model in (self.work.rnnt, self.work.lm, self.work.aed):
            pack(model, "int8" if format == MIXED else format)
        if format == MIXED:
            pack(self.work.aed, "int8", linear="float32")

    def fusion(self, task: str, method: str, system: str = "ilme") -> Fusion:
        if task == "RNN-T":
            internal = TransducerInternalLM(self.work.rnnt)
        else:
            internal = AttentionInternalLM(packed_copy(self.work.aed, "int8") if system == ROUNDED else self.work.aed)
        return Fusion(self.work.lm, internal, WEIGHTS[method])

    def search(self, task: str, method: str, beam: int, gate: float = 0.0, system: str = "ilme"):
        """A function of (utterances, frames, the first utterance) that decodes them."""
        fusion, work = self.fusion(task, method, system), self.work
        if task == "RNN-T":
            transducer = TransducerSearch(work.rnnt, fusion, TransducerOptions(beam=beam, blank_gate=gate))
            ranking = None
            if AGAIN in system:
                ranking = ExactRanking(packed_copy(work.rnnt, "int8", linear="float32"), fusion.weights)

            def transduce(B: int, T: int, first: int = 0):
                encoded = work.acoustics[first : first + B, :T], torch.full((B,), T)
                lists = transducer(*encoded)
                return lists if ranking is None else ranking(lists, encoded)

            return transduce
        attention = TimedSearch(work.aed, fusion, AttentionOptions(beam=beam, max_length=workload.AED_LABELS - 1))

        def run(B: int, T: int, first: int = 0):
            hidden = work.hidden[first : first + B, :T]
            lists = attention((hidden, work.aed.attend.key(hidden), torch.zeros(B, T)))
            self.steps = attention.steps
            return lists

        return run

    @torch.no_grad()
    def by_itself(self, task: str, method: str, format: str, beam=BEAM, batch=1, frames=workload.T) -> Row:
        """One row of one method, over the first `batch` utterances."""
        self.pack(format)
        run = self.search(task, method, beam)
        seconds, found = fastest(lambda: run(batch, frames), self.repeats if batch == 1 else 1)
        labels = [list(nbest[0].tokens) for nbest in found]
        row = Row("ilme", task, method, format, beam, batch, frames, seconds / batch, labels)
        print(row.said(), flush=True)
        return row

    @torch.no_grad()
    def in_turns(
        self, task: str, format: str, batch: int, beam: int = BEAM, gate: float = 0.0, again: bool = False
    ) -> list[Row]:
        """One row per system and method over all utterances, `batch` at a time; they take turns."""
        self.pack(format)
        name = ", ".join(["ilme", *([f"blank gate {gate}"] if gate else []), *([AGAIN] if again else [])])
        turns = [(name, method) for method in METHODS]
        if task == "AED":
            turns += [(name, EQUAL)]
            turns += [(ROUNDED, "ILME"), (ROUNDED, EQUAL)] if format == "float32" else []
        runs = {turn: self.search(task, turn[1], beam, gate, turn[0]) for turn in turns}
        firsts = range(0, workload.UTTERANCES, batch)
        seconds = {turn: [[] for _ in firsts] for turn in turns}
        steps = {turn: [[] for _ in firsts] for turn in turns}
        labels: dict[tuple[str, str], list[list[int]]] = {}
        rounds = self.repeats if batch == 1 or gate or format == MIXED else max(self.repeats, 3)
        for _ in range(rounds):
            found = {turn: [] for turn in turns}
            for piece, first in enumerate(firsts):
                for turn, run in runs.items():
                    before = own_cpu_seconds()
                    lists = run(batch, workload.T, first)
                    seconds[turn][piece].append((own_cpu_seconds() - before) / batch)
                    steps[turn][piece].append(self.steps)
                    found[turn] += [list(nbest[0].tokens) for nbest in lists]
            labels = found
        rows = []
        for system, method in turns:
            if method == EQUAL:
                continue
            cost = statistics.mean(min(piece) for piece in seconds[system, method])
            row = Row(system, task, method, format, beam, batch, workload.T, cost, labels[system, method])
            if method == "ILME":
                row.over_sf, row.pairs = excess(seconds[name, "SF"], seconds[system, method])
                if (system, EQUAL) in seconds:
                    row.over_sf_at_its_hypotheses, _ = excess(seconds[name, "SF"], seconds[system, EQUAL])
                    row.over_sf_step_by_step = least(steps[system, EQUAL]) / least(steps[name, "SF"]) - 1
            rows.append(row)
            print(row.said(), flush=True)
        return rows

    @torch.no_grad()
    def exact(self, task: str, method: str, utterance: int, labels: list[int]) -> float:
        """The fused score in float32, over all alignments where there are any."""
        work, weights = self.work, METHODS[method]
        key = (task, method, utterance, tuple(labels))
        if key not in self.exact_scores:
            self.pack("float32")
            fusion = self.fusion(task, method)
            if task == "RNN-T":
                score = workload.transducer_score(work.rnnt, work.acoustics[utterance], labels)
            else:
                score = workload.attention_score(work.aed, work.hidden[utterance], labels)
            end = task == "AED"
            if weights.lm:
                score += weights.lm * workload.language_score(fusion.lm, labels, end)
            if weights.subtracted:
                score -= weights.subtracted * workload.language_score(fusion.subtracted, labels, end)
            self.exact_scores[key] = score
        return self.exact_scores[key]

    def judge(self, rows: list[Row]) -> None:
        """Fills in exact scores, gaps to the best known, and ratios to the best peer at the same task and batch."""
        whole = [row for row in rows if row.frames == workload.T]
        best: dict[tuple[str, str, int], float] = {}
        for row in whole:
            row.exact = [self.exact(row.task, row.method, u, y) for u, y in enumerate(row.labels)]
            for u, score in enumerate(row.exact):
                key = (row.task, row.method, u)
                best[key] = max(best.get(key, score), score)
        for row in whole:
            row.gap = [best[row.task, row.method, u] - score for u, score in enumerate(row.exact)]
        for row in whole:
            rivals = peers_of(row, whole) if row.is_ours else []
            if rivals:
                beside = [p for p in rivals if p.batch == row.batch] or rivals
                row.peer_ratio = min(p.cpu_seconds_per_utterance for p in beside) / row.cpu_seconds_per_utterance
                if row.method == rivals[0].method:
                    pairs = [pair for p in rivals for pair in zip(row.exact, p.exact, strict=False)]
                    row.peer_gap = max(theirs - own for own, theirs in pairs)


def excess(sf: list[list[float]], own: list[list[float]]) -> tuple[float, int]:
    """The median of own / SF − 1 over decodes of the same utterances that followed each other, and their number."""
    pairs = zip(itertools.chain.from_iterable(sf), itertools.chain.from_iterable(own), strict=True)
    ratios = [ours / theirs - 1 for theirs, ours in pairs]
    return statistics.median(ratios), len(ratios)


def least(pieces: list[list[list[float]]]) -> float:
    """The sum over pieces and their steps of a step's least time in any round."""
    return sum(min(rounds) for piece in pieces for rounds in zip(*piece, strict=True))


def peers_of(row: Row, rows: list[Row]) -> list[Row]:
    """The peers at the same task, method and beam."""
    beam = BEAM if row.format == MIXED else row.beam
    method = "SF" if row.method == "ILME" else row.method  # no peer subtracts an internal LM
    return [p for p in rows if not p.is_ours and (p.task, p.beam, p.method) == (row.task, beam, method)]


def worse_than_a_peer(rows: list[Row]) -> list[str]:
    """The rows whose hypothesis a peer beats on some utterance, and by how much."""
    return [
        f"{r.task} {r.method} {r.format} beam {r.beam} batch {r.batch} {r.system}: {r.peer_gap:.4f} nats"
        for r in rows
        if r.peer_gap is not None and r.peer_gap > ROUNDING
    ]


def measure_methods(bench: Bench, task: str, formats: list[str], batches: list[int]) -> list[Row]:
    """Every method in these formats and batch sizes, at beam 25."""
    rows = []
    for format in formats:
        for batch in batches:
            rows += bench.in_turns(task, format, batch)
            if task == "RNN-T":
                rows += bench.in_turns(task, format, batch, gate=BLANK_GATE)
                if format == "int8":
                    rows += bench.in_turns(task, format, batch, gate=BLANK_GATE, again=True)
            elif format == "int8":
                rows += bench.in_turns(task, MIXED, batch, beam=MIXED_BEAM)
    return rows


def measure_rest(bench: Bench) -> list[Row]:
    """Search errors of narrow beams over all four utterances; growth with frames and beam."""
    rows = []
    for beam in (4, 8):
        for format in ("float32", "int8"):
            for method in ("no LM", "ILME"):
                rows.append(bench.by_itself("RNN-T", method, format, beam=beam, batch=4))
                rows.append(bench.by_itself("AED", method, format, beam=beam, batch=4))
    growth = [{"frames": 84}, {"frames": 167}, {"beam": 12}, {"beam": 50}]  # the whole length and beam 25 are above
    rows.extend(bench.by_itself("RNN-T", "ILME", "float32", **change) for change in growth)
    return rows


def measure_peers(options: argparse.Namespace, path: Path) -> tuple[list[Row], list[str]]:
    """The peers that there is an interpreter for; why the others are left out."""
    rows, skipped = [], []
    for script, (name, task, methods) in PEERS.items():
        python = getattr(options, f"{name}_python")
        if python is None:
            skipped.append(f"{script}: no --{name}-python was given")
            continue
        batches = (1, 4) if name == "speechbrain" and not options.quick else (1,)
        for method in methods:
            for batch in batches:
                call = [
                    python, str(HERE / "peers" / f"{script}.py"), str(path), "--batch", str(batch),
                    "--utterances", str(workload.UTTERANCES),
                    "--lm-weight", str(METHODS[method].lm), "--repeats", str(options.peer_repeats),
                ]  # fmt: skip
                done = subprocess.run(call, capture_output=True, text=True, check=False)
                if done.returncode:
                    skipped.append(f"{script} {method}: {done.stderr.strip().splitlines()[-1:]}")
                    continue
                said = json.loads(done.stdout.strip().splitlines()[-1])
                measured = said["beam"], batch, workload.T, said["cpu_seconds_per_utterance"], said["labels"]
                rows.append(Row(said["system"], task, method, "float32", *measured))
                print(rows[-1].said(), flush=True)
    return rows, skipped


def probe_memory(path: Path, frames: int, beam: int) -> None:
    """In a process of its own: how much the peak rises while one long utterance is searched."""
    work = workload.load(path)
    bench = Bench(work, 1)
    pack(work.rnnt, "float32")
    pack(work.lm, "float32")
    work.acoustics = work.acoustics.repeat(1, -(-frames // workload.T), 1)
    run = bench.search("RNN-T", "ILME", beam)
    with torch.no_grad():
        run(1, 16)
        before = forget_peak()
        run(1, frames)
    print(json.dumps({"frames": frames, "beam": beam, "rise_mb": round(peak_since_mb() - before, 1)}))


def measure_memory(path: Path) -> list[dict[str, float]]:
    out = []
    for frames, beam in ((workload.T, BEAM), (4 * workload.T, BEAM), (workload.T, 2 * BEAM)):
        call = [sys.executable, "-m", "benchmarks.search", "--probe-memory", f"{path},{frames},{beam}"]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        out.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return out


@torch.no_grad()
def measure_cuda(work: workload.Workload, repeats: int) -> list[dict[str, object]]:
    """Utterances a second on the GPU, wall clock, batches of 1 to 256.

    Transducers with their frames as CUDA graphs (`recorded`, which is what a search does by itself), and without.
    """
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for name in ("rnnt", "aed", "lm", "acoustics", "hidden"):
            setattr(work, name, getattr(work, name).to("cuda", dtype))
        for task, internal in (("RNN-T", TransducerInternalLM(work.rnnt)), ("AED", AttentionInternalLM(work.aed))):
            for method, weights in METHODS.items():
                fusion = Fusion(work.lm, internal, weights)
                kinds = (True, False) if task == "RNN-T" else (None,)
                for batch, recorded in itertools.product((1, 16, 64, 256), kinds):
                    seconds = _cuda_seconds(work, task, fusion, batch, repeats, recorded)
                    rows.append(
                        {"task": task, "method": method, "dtype": str(dtype).removeprefix("torch."), "batch": batch,
                         "recorded": recorded, "utterances_per_second": batch / seconds}
                    )  # fmt: skip
                    print(rows[-1], flush=True)
    return rows


def _cuda_seconds(
    work: workload.Workload, task: str, fusion: Fusion, batch: int, repeats: int, recorded: bool | None
) -> float:
    copies = -(-batch // workload.UTTERANCES)
    if task == "RNN-T":
        f = torch.cat([work.acoustics.roll(i, 1) for i in range(copies)])[:batch]  # no two have a label at once
        lengths = torch.full((batch,), workload.T, device="cuda")
        transducer = TransducerSearch(work.rnnt, fusion, TransducerOptions())
        transducer.records = bool(recorded)
        run = lambda: transducer(f, lengths)  # noqa: E731
    else:
        hidden = work.hidden.repeat(copies, 1, 1)[:batch]
        memory = (hidden, work.aed.attend.key(hidden), hidden.new_zeros(hidden.shape[:2]))
        attention = AttentionSearch(work.aed, fusion, AttentionOptions(max_length=workload.AED_LABELS - 1))
        run = lambda: attention(memory)  # noqa: E731
    run()
    best = float("inf")
    for _ in range(repeats):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    return best


def table(rows: list[Row]) -> str:
    head = f"{'task':6} {'method':6} {'format':8} {'beam':>4} {'batch':>5} {'frames':>6} {'CPU s/utt':>9} "
    lines = [head + f"{'× peer':>7} {'mean gap':>9} {'to peer':>8}  system"]
    for r in sorted(rows, key=lambda r: (r.task, r.method, r.frames, r.beam, r.batch, r.cpu_seconds_per_utterance)):
        ratio = f"{r.peer_ratio:7.2f}" if r.peer_ratio else f"{'':7}"
        gap = f"{sum(r.gap) / len(r.gap):9.4f}" if r.gap else f"{'':9}"
        cost = f"{r.beam:4} {r.batch:5} {r.frames:6} {r.cpu_seconds_per_utterance:9.3f}"
        behind = f"{r.peer_gap:+8.4f}" if r.peer_gap is not None else f"{'':8}"
        lines.append(f"{r.task:6} {r.method:6} {r.format:8} {cost} {ratio} {gap} {behind}  {r.system}")
    return "\n".join(lines)


def measure_parts(options: argparse.Namespace, bench: Bench, path: Path) -> tuple[list[Row], list[str]]:
    """The rows that are asked for, measured or read from files of parts, and the peers left out."""
    if options.merge:
        parts = [json.loads(file.read_text()) for file in options.merge]
        return [Row(**row) for part in parts for row in part["rows"]], [x for p in parts for x in p["skipped_peers"]]
    rows: list[Row] = []
    skipped: list[str] = []
    for part, task in (("rnnt", "RNN-T"), ("aed", "AED")):
        if options.only in (None, part):
            rows += measure_methods(bench, task, options.formats, [1] if options.quick else options.batches)
    if options.only == "rest" or not (options.only or options.quick):
        rows += measure_rest(bench)
    if options.only in (None, "peers"):
        peers, skipped = measure_peers(options, path)
        rows += peers
    return rows, skipped


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in sorted({option for option, _, _ in PEERS.values()}):
        parser.add_argument(f"--{name}-python", metavar="PATH", help=f"interpreter that can import {name}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=2, help="rounds over the utterances; the least CPU time counts")
    parser.add_argument("--peer-repeats", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="batch 1 and beam 25 only")
    parser.add_argument("--only", choices=("rnnt", "aed", "rest", "peers"), help="measure one part, to be merged")
    parser.add_argument("--formats", nargs="+", default=["float32", "int8"], help="of the parts rnnt and aed")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4], help="of the parts rnnt and aed")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="put parts of one machine together")
    parser.add_argument("--commit", help="what is measured, where the folder is no git checkout")
    parser.add_argument("--output", type=Path, help="default: out/search-DEVICE.json")
    parser.add_argument("--probe-memory", metavar="FILE,FRAMES,BEAM", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    if options.probe_memory:
        path, frames, beam = options.probe_memory.split(",")
        return probe_memory(Path(path), int(frames), int(beam))
    about = {"commit": options.commit or commit(), "command": command()}
    report: dict[str, object] = {"machine": machine(), **about}
    work = workload.build()
    if options.device == "cuda":
        report["machine"] = {**machine(), "gpu": torch.cuda.get_device_name()}
        report["rows"] = measure_cuda(work, options.repeats)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "workload.safetensors"
            workload.save(work, path)
            bench = Bench(work, options.repeats)
            rows, skipped = measure_parts(options, bench, path)
            if not options.only:
                bench.judge(rows)
            kept = () if options.only else ("labels",)
            report["rows"] = [{k: v for k, v in asdict(row).items() if k not in kept} for row in rows]
            for row, written in zip(rows, report["rows"], strict=True) if not options.only else ():
                written["mean_gap"] = statistics.mean(row.gap) if row.gap else None
            report["skipped_peers"] = skipped
            report["memory"] = [] if options.quick or options.only else measure_memory(path)
            report["worse_than_a_peer"] = worse_than_a_peer(rows)
        print(table(rows))
        print("memory:", report["memory"], "\nskipped:", skipped or "none")
        print("worse than a peer:", *(report["worse_than_a_peer"] or ["none"]), sep="\n  ")
    output = options.output or Path("out") / f"search-{options.device}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {output}")
    return None


if __name__ == "__main__":
    main()
