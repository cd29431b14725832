"""The card of the bundle: what it holds, where it came from, under which terms, what it was measured to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ilme.runtime.files import write_text

__all__ = ["write_card"]

_NETWORKS = ("rnnt", "aed", "lm-target", "lm-source")


class Counts(Protocol):
    """How many utterances are bundled, and the beam they are decoded with."""

    @property
    def dev(self) -> int: ...

    @property
    def test(self) -> int: ...

    @property
    def beam(self) -> int: ...


def _training_row(name: str, facts: Mapping[str, Any]) -> str:
    made, heard = facts["made_with"], facts["hours_heard"]
    cells = [name, facts["steps"], f"{heard:.0f}" if heard else "–", f"{facts['training_seconds']:.0f}"]
    return f"| {' | '.join(map(str, cells))} | {made['device']} | {made['torch']} | {made['commit'][:7] or '–'} |"


def _starts(config: Mapping[str, Any]) -> list[str]:
    """A line for each network that did not start from fresh weights."""
    found = [(name, config[name].get("starts_from")) for name in ("rnnt", "aed")]
    lines = [f"`{name}` started from the weights of an earlier run: {model}." for name, model in found if model]
    return [*lines, ""] if lines else []


def write_card(file: Path, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], counts: Counts) -> None:
    """Writes card.md from a study's description and the bundle's own measurements."""
    config, stages = about["config"], about["stages"]
    sizes = {name: f"{stages[name]['parameters'] / 1e6:.2f} M parameters" for name in _NETWORKS}
    hours = f"{stages['speech']['hours']:.0f} h"
    lines = [
        "# The embedded default",
        "",
        f"Small models of the study `{about['name']}`, for demonstration and tests. They have heard synthetic voices",
        "(espeak-ng) only, and recognise real speech badly.",
        "",
        "## Contents",
        "",
        "| file | what |",
        "| --- | --- |",
        f"| rnnt.safetensors | RNN-T, {sizes['rnnt']}; trained on {hours} of synthetic speech, as the AED |",
        f"| aed.safetensors | attention encoder-decoder, {sizes['aed']}; both are counted with their CTC layers, "
        "which are left out |",
        f"| lm.safetensors | LSTM-LM of the target domain, {sizes['lm-target']} |",
        f"| source_lm.safetensors | LSTM-LM of the source transcripts, {sizes['lm-source']} |",
        f"| dev.tar.xz, test.tar.xz | {counts.dev} and {counts.test} target utterances, Opus, with noise |",
        "",
        "Weights are stored in 8 bits, one scale for each row. Word pieces (BPE) are inside each network's header.",
        "",
        "## Data and licences",
        "",
        "- Source text: State of the Union addresses (public domain).",
        "- Target text: novels of Jane Austen and Moby-Dick (public domain); dev and test are whole novels that no",
        "  model and no LM has seen.",
        "- Speech: made by espeak-ng (GPL-3.0-or-later; its output is not covered by its licence).",
        "- Models, weights and recordings: Apache-2.0, as the package.",
        "",
        "## Training",
        "",
        f"`ilme study configs/study/{about['name']}.yaml`, seed {config['seed']}; then `make bundle`.",
        "",
        "| network | steps | hours of speech heard | seconds | device | torch | commit |",
        "| --- | ---: | ---: | ---: | --- | --- | --- |",
        *(_training_row(name, stages[name]) for name in _NETWORKS),
        "",
        *_starts(config),
        "## Results",
        "",
        f"WER (%) on the bundled utterances, beam {counts.beam}, weights chosen on the study's dev set.",
        "",
        "| model | method | parameters (M) | λ_T | μ | dev WER | test WER |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        weights = row["weights"]
        lines.append(
            f"| {row['model']} | {row['method']} | {row['parameters'] / 1e6:.1f} | {weights['lm']:.3f} | "
            f"{weights['subtracted']:.3f} | {row['dev_wer']:.2f} | {row['test_wer']:.2f} |"
        )
    write_text(file, "\n".join(lines) + "\n")
