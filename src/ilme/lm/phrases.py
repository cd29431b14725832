"""A bonus for listed phrases, names and terms say, that any search adds to its scores.

    B(y) = Σ own(p), over every place where a listed p stands in y as whole words
    own(p) = max(0, bonus(p) − Σ own(q)), over every place where another q stands in p

so a phrase inside another counts once: "New York City" has the bonus of itself, not those of "New York" and "City" too.
While a phrase is being written its labels have part of the bonus, or a beam would lose it before its end. What is held
so is a function h of the place in the phrase alone, and leaving the phrase gives it back:

    b(v | y) = h(y v) − h(y) + [v ends the word before it] · due(y),    h(no phrase) = 0

due(y) is what is owed for the phrases that y ends with, if their last word ends there too. The sum over a whole
sequence is B(y) exactly, whatever h is: h only decides what survives pruning. Places are the states of an Aho–Corasick
automaton over labels, so overlapping phrases are all found, and a state is one number for each sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ilme.errors import BadInputError
from ilme.tokens import Tokens

__all__ = ["PhraseScorer", "WordEdges"]

WITHIN, EDGE = 0, 1  # no phrase is being written; at EDGE one can begin without a mark of its own
Labels = tuple[int, ...]


@dataclass(frozen=True)
class WordEdges:
    """Where words begin and end in labels: three flags for each id of an inventory.

    Attributes:
        begins: It brings the space before a word with it, as "▁the" and " the" do.
        closes: The word before it has ended: it begins one, or is punctuation, or no text.
        opens: A word can begin right after it without a space: punctuation, a space alone, no text.
    """

    begins: tuple[bool, ...]
    closes: tuple[bool, ...]
    opens: tuple[bool, ...]


class PhraseScorer:
    """The bonus of phrases as a `TokenScorer` whose rows are no probabilities; the state is (n,), one place each.

    Args:
        tokens: The inventory, with an eos or a blank, in whose column the rows keep the score of the end.
        phrases: The bonus of each phrase, by its labels.
        edges: Where words begin and end.
        device: Where it runs.
    """

    capturable = True

    def __init__(
        self,
        tokens: Tokens,
        phrases: Mapping[Labels, float],
        edges: WordEdges,
        device: torch.device | str = "cpu",
    ) -> None:
        end = tokens.blank if tokens.eos is None else tokens.eos
        if end is None:
            raise BadInputError("this inventory has neither eos nor blank; phrases need one to end a sequence")
        self.tokens, self.device, self.end = tokens, torch.device(device), end
        trie = _Trie(edges)
        for labels, bonus in phrases.items():
            trie.insert(labels, bonus)
        trie.link()
        self._place(trie, len(tokens))

    def _place(self, trie: _Trie, size: int) -> None:
        """The automaton as tensors on the device."""
        nodes = trie.nodes
        moves = [(i, label, node.moves[label]) for i, node in enumerate(nodes) for label in sorted(node.moves)]
        # with no move at all there would be nothing to look into: no place is −1
        sources, labels, targets = (torch.tensor(x) for x in zip(*(moves or [(-1, 0, 0)]), strict=True))
        held, due = (torch.tensor([getattr(node, name) for node in nodes]) for name in ("held", "due"))
        base, roots = torch.tensor([node.base for node in nodes]), trie.roots()
        counts = [len(node.moves) for node in nodes]
        tensors = {
            "keys": sources * size + labels,  # (M,) rising: a place and a label
            "targets": targets,  # (M,)
            "labels": labels,  # (M,)
            "lifts": held[targets] - held[roots[base[sources], labels]],  # (M,) above the root's row
            "first": torch.tensor([0, *counts]).cumsum(0),  # (places + 1,) where the moves of each begin
            "ways": torch.arange(max(counts)),
            "roots": roots,  # (2, V) where a label leads from each root
            "rows": held[roots],  # (2, V)
            "base": base,  # (places,)
            "held": held,
            "due": due,
            "closes": torch.tensor(trie.edges.closes).float(),  # (V,)
        }
        self._on = {name: x.to(self.device) for name, x in tensors.items()}

    def start(self, n: int) -> tuple[Tensor, Tensor]:
        state = torch.full((n,), EDGE, device=self.device)
        return self._scores(state), state

    def score(self, labels: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.advance(labels, state)
        return self._scores(state), state

    def finish(self, rows: Tensor) -> Tensor:
        """What is due at the end, less what is held (n,)."""
        return rows[:, self.end]

    def advance(self, labels: Tensor, state: Tensor) -> Tensor:
        """The places (n,) one label (n,) later."""
        on, wanted = self._on, state * len(self.tokens) + labels
        at = torch.searchsorted(on["keys"], wanted).clamp_(max=len(on["keys"]) - 1)
        return torch.where(on["keys"][at] == wanted, on["targets"][at], on["roots"][on["base"][state], labels])

    def _scores(self, state: Tensor) -> Tensor:
        """b(· | y) (n, V) at these places: the root's rows, but for the few places that are inside a phrase."""
        rows = self._on["rows"].index_select(0, self._on["base"][state])
        if rows.is_cuda:  # asking which they are would wait for the device
            return self._inside(rows, state)
        inside = (state > EDGE).nonzero().squeeze(1)
        if len(inside):
            rows[inside] = self._inside(rows[inside], state[inside])
        return rows

    def _inside(self, rows: Tensor, state: Tensor) -> Tensor:
        """The root's rows (n, V) with what these places have more: ways on, what is held, what is due."""
        on = self._on
        way = on["first"][state][:, None] + on["ways"]
        at = way.clamp(max=len(on["labels"]) - 1)
        lifts = on["lifts"][at].masked_fill(way >= on["first"][state + 1][:, None], 0.0)
        rows = rows.scatter_add(1, on["labels"][at], lifts)
        return rows - on["held"][state][:, None] + on["due"][state][:, None] * on["closes"]


@dataclass(slots=True)
class _Node:
    """A place in the automaton while it is made."""

    parent: int = WITHIN
    label: int = -1  # that leads here
    depth: int = 0
    bonus: float = 0.0  # of the phrase that ends here
    part: float = 0.0  # of the bonus of phrases that pass, in proportion to their labels so far
    paid: float = 0.0  # for phrases inside that have ended before the last label
    due: float = 0.0
    held: float = 0.0
    fail: int = WITHIN  # the place of the longest ending of its labels that is one
    base: int = WITHIN  # the root at the end of the fail links
    children: dict[int, int] = field(default_factory=dict)
    moves: dict[int, int] = field(default_factory=dict)  # ways on that its root does not have


class _Trie:
    """The nodes by number; the first two are the roots."""

    def __init__(self, edges: WordEdges) -> None:
        self.edges = edges
        self.nodes = [_Node(), _Node(base=EDGE)]

    def insert(self, labels: Sequence[int], bonus: float) -> None:
        """A phrase whose first label brings no space begins at an edge only."""
        at = WITHIN if self.edges.begins[labels[0]] else EDGE
        for depth, label in enumerate(labels, 1):
            children = self.nodes[at].children
            if label not in children:
                children[label] = len(self.nodes)
                self.nodes.append(_Node(at, label, depth))
            at = children[label]
            self.nodes[at].part = max(self.nodes[at].part, bonus * depth / len(labels))
        self.nodes[at].bonus = max(self.nodes[at].bonus, bonus)

    def link(self) -> None:
        """Fail links, and what is due and held, level by level: what a node needs stands nearer to the roots."""
        for node in sorted(self.nodes[2:], key=lambda node: node.depth):
            parent = self.nodes[node.parent]
            node.fail = self._root(node.label) if node.parent == WITHIN else self._step(parent.fail, node.label)
            fail = self.nodes[node.fail]
            node.base = fail.base
            node.paid = parent.paid + self.edges.closes[node.label] * parent.due
            node.due = fail.due + max(0.0, node.bonus - node.paid - fail.due)
            node.held = max(node.part - node.paid, node.due, fail.held)
            node.moves = fail.moves | node.children

    def _step(self, at: int, label: int) -> int:
        """Where the label leads from a place whose fail links are there."""
        while label not in self.nodes[at].children:
            if at == WITHIN:
                return self._root(label)
            at = self.nodes[at].fail
        return self.nodes[at].children[label]

    def _root(self, label: int) -> int:
        return EDGE if self.edges.opens[label] else WITHIN

    def roots(self) -> Tensor:
        """Where each label leads from each root (2, V)."""
        targets = torch.tensor(self.edges.opens).long().expand(2, -1).clone()
        for root in (WITHIN, EDGE):
            targets[EDGE] = targets[WITHIN]
            for label, child in self.nodes[root].children.items():
                targets[root, label] = child
        return targets
