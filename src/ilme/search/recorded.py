"""The transducer search on a CUDA device: frames as CUDA graphs, networks for new label sequences alone.

The host decides what is run, and looks at three numbers in doing so: how many places of the beam a label may be added
to, how many sequences have been added, and how many of these are new.

    frame    the K best that ended the last frame become the beam; join, blank; a bound tells which labels may matter
    grow     those rows alone: language, the best labels, the K best sequences one label longer, their slots in the pool
    extend   those sequences alone that are new: prediction network, LM, what is subtracted, phrases
    end      those that have grown: join, blank, and equal sequences become one

Most frames are blank for all and end with the first. Each of the four is recorded once for each size of its rows
(powers of two) and then replayed. What is neither a network nor a sort is a kernel of `ilme.search.recorded_kernels`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ilme.fusion import SCORERS
from ilme.protocols import NullScorer, SharedPrediction
from ilme.runtime.cuda import Executor
from ilme.runtime.state import State, map_tensors
from ilme.search.history import NO_NODE, traced
from ilme.search.prefixes import EMPTY, Start, Step
from ilme.search.repetition import repetition_lane
from ilme.search.transducer import ROUNDING, Beam, TransducerSearch, TransducerStream
from ilme.smoothing import SmoothedScorer

__all__ = ["Machine", "RecordedStream"]

KEPT = 2  # buffers that wait for the next search: with LMs and without
FRAMES = 128  # that are searched before the host fetches what was written of them
SMALLEST = 32  # rows of the smallest recording
NO_LIMIT = 2.0**60
FIELDS, IDS = 6, 3  # path, asr, lm, subtracted, phrases, length; hash, node, slot


class RecordedStream(TransducerStream):
    """The state of a search between two chunks of frames, in the buffers of a machine that it holds until it ends."""

    def _begin(self, limits: Tensor | None) -> None:
        self.machine = Machine.take(self.search, self.batch)
        with _on(self.device):
            self.machine.reset(limits)
        self.beam = self.machine.beam(self.batch)  # not a copy: it follows the search
        self.entries: list[int] = []  # of the tree that were written
        self.trees: list[Tensor] = []
        self.searched = 0  # frames

    @torch.no_grad()
    def feed(self, f: Tensor, lengths: Tensor | None = None) -> None:
        self._check(f)
        ends = f.new_full((self.batch,), f.shape[1], dtype=torch.long) if lengths is None else lengths.to(f.device)
        last = f.shape[1] if lengths is None else int(lengths.max()) if len(lengths) else 0
        with _on(self.device):
            for first in range(0, last, FRAMES):
                frames = min(FRAMES, last - first)
                written, tree = self.machine.search_frames(f[:, first : first + frames], ends - first)
                self.entries += [self.searched * self.growths + entry for entry in written]
                self.trees.append(tree)
                self.searched += frames

    @torch.no_grad()
    def finish(self) -> Any:
        with _on(self.device):
            lists = super().finish()
        kept = [machine for machine in self.search.idle if machine is not self.machine]
        self.search.idle[:] = [self.machine, *kept][:KEPT]
        return lists

    def _language(self, name: str, slots: Tensor) -> Tensor:
        return self.machine.lanes[name].at(slots)

    def _trace(self, nodes: list[list[int]]) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
        if not self.entries:
            return [[((), ()) for _ in row] for row in nodes]
        tree, entries = torch.cat(self.trees).cpu().numpy(), np.array(self.entries, dtype=np.int64)
        return traced(tree[:, 0], tree[:, 1], entries // self.growths, nodes, entries)


class Machine:
    """Buffers for B utterances, and the recordings that work on them.

    Args:
        search: What is searched, and how.
        batch: B.
    """

    def __init__(self, search: TransducerSearch, batch: int) -> None:
        self.kernels: Any = importlib.import_module("ilme.search.recorded_kernels")
        options, model = search.options, search.model
        self.options, self.model, self.device = options, model, model.device
        self.networks, self.addresses = _networks(search), _addresses(search)
        self.B, self.K, self.R = batch, options.beam, options.max_symbols
        self.S, self.W, self.V = (self.R + 4) * self.K, (self.R + 1) * self.K, len(model.tokens)
        self.P, self.rows = min(self.K, self.V), batch * self.K
        self.dump = batch * self.S  # a slot that nobody reads, for rows that fill a recording up
        self.guard, _ = repetition_lane(options, self.V, 1, self.device)
        self.lanes = self._make_lanes(search)
        first = model.join(None, self.lanes["g"].output[:1])
        self.dtype, self.logits_dtype = torch.promote_types(first.dtype, torch.float32), first.dtype
        self.executor = Executor(self.device)
        self._allocate()
        self.adopt(search)

    # --- machines are made once and used again --------------------------------------------------------------------

    @staticmethod
    def take(search: TransducerSearch, batch: int) -> Machine:
        """One that no stream holds and that was made for the same, or a new one."""
        for machine in list(search.idle):
            if batch <= machine.B <= max(4, 2 * batch) and machine.serves(search):
                with contextlib.suppress(ValueError):  # another thread has taken it
                    search.idle.remove(machine)
                    machine.adopt(search)
                    return machine  # type: ignore[no-any-return]
        with _on(search.model.device):
            return Machine(search, batch)

    def serves(self, search: TransducerSearch) -> bool:
        """Whether a search has the same networks, not moved since, and the same options; fusion weights may differ."""
        networks = zip(self.networks, _networks(search), strict=True)
        same = self.options == search.options and all(_same(a, b) for a, b in networks)
        return same and self.addresses == _addresses(search)

    def adopt(self, search: TransducerSearch) -> None:
        """Takes a search's fusion weights."""
        weights = search.weights
        scale = 1 + weights.lm if self.options.blank_aware else 1.0
        given = [weights.lm, weights.subtracted, weights.length, weights.phrases, scale]
        self.weights.copy_(torch.tensor(given, dtype=self.dtype))

    # --- buffers ----------------------------------------------------------------------------------------------------

    def _make_lanes(self, search: TransducerSearch) -> dict[str, Held]:
        model, slots = self.model, self.dump + 1
        lanes = {"g": Held(model.start, model.predict, slots)}
        for name in SCORERS:
            scorer = getattr(search, name)
            if isinstance(scorer, NullScorer):
                lanes[name] = Held(scorer.start, None, 1)
            elif name == "subtracted" and isinstance(scorer, SharedPrediction) and scorer.host is model:
                lanes[name] = Derived(lanes["g"], scorer.rows_of)
            else:
                lanes[name] = Held(scorer.start, scorer.score, slots)
        if self.guard is not None:
            lanes["repeats"] = Held(self.guard.first, self.guard.step, slots)
        return lanes

    def _allocate(self) -> None:
        B, K, R, W, S, V = self.B, self.K, self.R, self.W, self.S, self.V

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=self.device)

        def real(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)

        self.opened, self.opened_ids = real(FIELDS, R + 1, B, K), whole(IDS, R + 1, B, K)
        self.ended, self.ended_ids = real(FIELDS, B, W), whole(IDS, B, W)
        self.totals, self.open_totals, self.floors, self.limits = real(B, W), real(B, K), real(B), real(B)
        self.norms, self.lift = real(3, B * K), real(self.dump + 1)
        self.logits = torch.zeros(B * K, V, dtype=self.logits_dtype, device=self.device)
        self.pool_hashes, self.pool_labels, self.used = whole(B, S), whole(self.dump + 1), whole(B, S)
        self.frame, self.step, self.round, self.until = (whole(B) for _ in range(4))
        self.at, self.picked = whole(B, K), whole(B, K)
        self.promising, self.promising_slots = whole(B * K), whole(B * K)
        self.new, self.grown = whole(2, B * K), whole(2, B * K)  # slots and parents' slots; utterances and slots
        self.units = whole(B, K * self.P)
        self.scores = real(B, K * self.P)
        self.places = torch.arange(B * K, device=self.device)
        self.place_utterances = self.places // K
        self.base = torch.arange(B, device=self.device) * S
        self.f = torch.zeros(0, dtype=self.dtype, device=self.device)
        self.tree = torch.zeros(FRAMES * R, 2, B, K, dtype=torch.int32, device=self.device)
        self.counts = torch.zeros(4, dtype=torch.int32, device=self.device)
        self.seen = torch.zeros(4, dtype=torch.int32, pin_memory=self.device.type == "cuda")
        self.weights = real(5)

    def reset(self, limits: Tensor | None) -> None:
        """Every utterance has the empty sequence alone."""
        for lane in self.lanes.values():
            lane.reset(self.base)
        self.lift.copy_(self.weights[2])
        self._lift_at(self.base)
        self.pool_hashes.zero_()
        self.pool_hashes[:, 0] = EMPTY
        self.used.zero_()
        self.used[:, 0] = 1  # the empty sequence is in use from the start: its slot is not to be taken
        self.frame.fill_(-1)
        self.ended.zero_()
        self.ended[:2] = -torch.inf
        self.ended[:2, :, 0] = 0
        self.ended_ids[0], self.ended_ids[1], self.ended_ids[2] = EMPTY, NO_NODE, self.base[:, None]
        self.limits.fill_(NO_LIMIT)
        if limits is not None:
            self.limits[: len(limits)] = limits.to(self.limits)
        self._settle(False)

    def beam(self, batch: int) -> Beam:
        """The beam of the first utterances."""
        return Beam(*self.opened[:, 0, :batch], *self.opened_ids[:, 0, :batch])

    # --- the search -------------------------------------------------------------------------------------------------

    def search_frames(self, f: Tensor, until: Tensor) -> tuple[list[int], Tensor]:
        """Searches frames f (n, T, J) of which until (n,) are each utterance's; gives what the tree has more.

        E entries of T · R, and their nodes (E, 2, B, K): parents and labels.
        """
        frames = f.shape[1]
        if self.f.shape[2:] != f.shape[2:] or self.f.dtype != f.dtype:
            self.f = f.new_zeros(self.B, FRAMES, f.shape[2])
            self.executor.forget()
        self.f[: len(f), :frames] = f
        self.until.zero_()
        self.until[: len(f)] = until
        self.step.fill_(-1)
        written = [t * self.R + labels for t in range(frames) for labels in range(self._advance())]
        self._settle(False)
        return written, self.tree[torch.tensor(written, dtype=torch.long, device=self.device)]

    def _advance(self) -> int:
        """Searches the next frame; the most labels that a sequence got."""
        promising = self._look("frame", self.rows)[0]
        for labels in range(self.R):
            if not promising:
                return labels
            _, new, grown = self._look("grow", promising)
            if not grown:
                return labels
            if new:
                self._run("extend", new)
            self._run("end", grown)
            promising = self._seen()[0] if labels + 1 < self.R else 0
        return self.R

    def _run(self, part: str, rows: int) -> None:
        rows = self._padded(rows)
        self.executor(f"{part} {rows}", lambda: getattr(self, f"_{part}")(rows))

    def _look(self, part: str, rows: int) -> list[int]:
        self._run(part, rows)
        return self._seen()

    def _seen(self) -> list[int]:
        self.executor.wait()
        return self.seen.tolist()[:3]

    def _padded(self, rows: int) -> int:
        padded = SMALLEST
        while padded < rows:
            padded *= 2
        return min(padded, self.rows)

    # --- what is recorded -------------------------------------------------------------------------------------------

    def _frame(self, rows: int) -> None:
        self._settle(True)
        self._join(self.place_utterances, self.opened_ids[2, 0].view(-1), self.places)

    def _end(self, rows: int) -> None:
        self._join(self.grown[0, :rows], self.grown[1, :rows], self.at)

    def _settle(self, advance: bool) -> None:
        self.kernels.settle_kernel[(self.B,)](
            self.ended, self.ended_ids, self.opened, self.opened_ids, self.totals, self.weights, self.used, self.frame,
            self.step, self.round, self.B, K=self.K, W=self.W, WP=_power(self.W, 32), R=self.R, S=self.S,
            ADVANCE=advance, num_warps=8,
        )  # fmt: skip

    def _join(self, utterances: Tensor, slots: Tensor, at: Tensor) -> None:
        model, g, n = self.model, self.lanes["g"].output, len(slots)
        acoustic = torch.empty(n, self.f.shape[2], dtype=self.f.dtype, device=self.device)
        language = torch.empty(n, g.shape[1], dtype=g.dtype, device=self.device)
        self.kernels.terms_kernel[(n,)](
            self.f, g, utterances, slots, self.step, self.counts, acoustic, language,
            T=FRAMES, F=self.f.shape[2], G=g.shape[1], BLOCK=_power(max(self.f.shape[2], g.shape[1])),
        )  # fmt: skip
        self.kernels.normalise_kernel[(n,)](
            model.join(acoustic, language).contiguous(), self.logits, self.norms, self.rows, V=self.V,
            BLANK=model.tokens.blank, BLOCK=min(4096, _power(self.V)), num_warps=8,
        )  # fmt: skip
        self.kernels.end_kernel[(self.B,)](
            self.ended, self.ended_ids, self.opened, self.opened_ids, self.totals, self.weights, self.norms, at,
            self.lift, self.limits, self.until, self.step, self.round, self.floors, self.open_totals, self.picked,
            self.promising, self.promising_slots, self.counts, self.B, self.rows, K=self.K, KP=_power(self.K),
            W=self.W, WP=_power(self.W, 32), R=self.R, AWARE=self.options.blank_aware, ROUNDING=ROUNDING,
            num_warps=8,
        )  # fmt: skip
        self.seen.copy_(self.counts, non_blocking=True)

    def _grow(self, rows: int) -> None:
        model, options = self.model, self.options
        language = [self.lanes[name].output for name in SCORERS]
        strides = [stride for x in language for stride in (x.stride(0) * (len(x) > 1), int(x.shape[1] > 1))]
        gains = torch.empty(rows, self.V, dtype=self.dtype, device=self.device)
        self.kernels.gains_kernel[(rows,)](
            self.logits, self.norms, *language, self.weights, self.promising, self.promising_slots, self.counts, gains,
            self.rows, *strides, V=self.V, BLANK=model.tokens.blank, AWARE=options.blank_aware,
            BLOCK=min(1024, _power(self.V)),
        )  # fmt: skip
        if self.guard is not None:
            memory = self.lanes["repeats"].output.index_select(0, self.promising_slots[:rows])
            self.guard.forbid(gains[None], memory[None])
        best, labels = gains.topk(self.P, sorted=False)
        self.kernels.spread_kernel[(self.rows,)](
            best, labels, self.picked, self.open_totals, self.scores, self.units, P=self.P, PP=_power(self.P),
            num_warps=1,
        )  # fmt: skip
        scores, index = self.scores.topk(self.K, sorted=False)
        self.new.fill_(self.dump)
        self.kernels.grow_kernel[(self.B,)](
            scores, index, self.units, self.logits, self.norms, *language, self.weights, self.opened, self.opened_ids,
            self.floors, self.picked, self.promising, self.frame, self.step, self.round, self.tree, self.pool_hashes,
            self.pool_labels, self.used, self.counts, self.at, *self.new, *self.grown, self.B, self.rows, *strides,
            K=self.K, KP=_power(self.K), P=self.P, R=self.R, S=self.S, SP=_power(self.S, 32), V=self.V,
            AWARE=options.blank_aware, num_warps=8,
        )  # fmt: skip
        self.seen.copy_(self.counts, non_blocking=True)

    def _extend(self, rows: int) -> None:
        children, parents = self.new[:, :rows]
        labels = self.pool_labels.index_select(0, children)
        for lane in self.lanes.values():
            lane.extend(children, parents, labels)
        self._lift_at(children)

    def _lift_at(self, slots: Tensor) -> None:
        """The most that language can add to log P of a label, by sequence."""
        if all(self.lanes[name].step is None for name in SCORERS):
            return
        lm, subtracted, phrases = (self.lanes[name].at(slots) for name in SCORERS)
        of = self.weights  # not numbers: those would be recorded
        lift = of[0] * lm - of[1] * subtracted + of[2] + of[3] * phrases
        if lift.shape[1] > 1:
            lift[:, self.model.tokens.blank] = -torch.inf
        self.lift.index_copy_(0, slots, lift.amax(1).to(self.dtype))


class Held:
    """What one network gives for every slot, and its states.

    Args:
        start: n to (outputs, states) of n empty sequences.
        step: Labels and states to (outputs, states) of the sequences one label longer; None: the output never changes.
        slots: Slots in all; of an output that never changes one is enough.
    """

    def __init__(self, start: Start, step: Step | None, slots: int) -> None:
        self.start, self.step = start, step
        output, state = start(1)
        self.output = output.expand(slots, *output.shape[1:]).clone()
        self.state: State = None if step is None else _over(state, slots)

    def reset(self, slots: Tensor) -> None:
        """The empty sequence stands at these slots."""
        if self.step is not None:
            output, state = self.start(1)
            self._write(slots, output.expand(len(slots), *output.shape[1:]), _over(state, len(slots)))

    def extend(self, children: Tensor, parents: Tensor, labels: Tensor) -> None:
        """Computes the slots (n,) of sequences that are their parents with one label more."""
        if self.step is not None:
            self._write(children, *self.step(labels, map_tensors(lambda x: x.index_select(0, parents), self.state)))

    def at(self, slots: Tensor) -> Tensor:
        """Outputs of the slots (n, …)."""
        if self.step is None:
            return self.output.expand(len(slots), *self.output.shape[1:])
        return self.output.index_select(0, slots)

    def _write(self, slots: Tensor, output: Tensor, state: State) -> None:
        self.output.index_copy_(0, slots, output.to(self.output.dtype))
        map_tensors(lambda x, new: x.index_copy_(0, slots, new.to(x.dtype)), self.state, state)


class Derived(Held):
    """An internal LM that is a function of its host's language terms, which must be up to date."""

    def __init__(self, host: Held, rows: Callable[[Tensor], Tensor]) -> None:
        self.host, self.rows = host, rows
        output = rows(host.output[:1])
        super().__init__(lambda n: (output, None), lambda labels, state: (output, None), len(host.output))

    def reset(self, slots: Tensor) -> None:
        self.output.index_copy_(0, slots, self.rows(self.host.at(slots)).to(self.output.dtype))

    def extend(self, children: Tensor, parents: Tensor, labels: Tensor) -> None:
        self.reset(children)


def _over(state: State, slots: int) -> State:
    return map_tensors(lambda x: x.expand(slots, *x.shape[1:]).clone(), state)


def _power(n: int, least: int = 1) -> int:
    """The least power of two that is no smaller."""
    return max(least, 1 << (n - 1).bit_length())


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _networks(search: TransducerSearch) -> tuple[Any, ...]:
    return search.model, search.lm, search.subtracted, search.phrases


def _same(a: Any, b: Any) -> bool:
    """Whether two scorers give the same; those that say nothing and those that smooth are made anew for each search."""
    if isinstance(a, SmoothedScorer) and isinstance(b, SmoothedScorer):
        alike = a.smoothing.share == b.smoothing.share and torch.equal(a.smoothing.floor, b.smoothing.floor)
        return a.base is b.base and alike
    return a is b or (isinstance(a, NullScorer) and isinstance(b, NullScorer))


def _addresses(search: TransducerSearch) -> list[int]:
    """Where the weights are that a recording reads."""
    given = [getattr(network, "base", network) for network in _networks(search)]
    return [p.data_ptr() for network in given if isinstance(network, nn.Module) for p in network.parameters()]
