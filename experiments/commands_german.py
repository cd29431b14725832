"""Voice commands in German, text and speech: what `experiments.commands_domain` needs for a multilingual model.

    python -m experiments.commands_german --work out/german
    python -m experiments.commands_domain --model whisper-base-ct2 --work out/german --sentences 400 30 60 \
        --adapt language=de limit=0 options.beam=4 options.max_decodes=3 options.normaliser=basic \
        --decodes 3 --normaliser basic --json docs/results/data/whisper-german.json

Sentences are drawn from the German templates of `home-assistant-intents`, whose open lists are filled here; those with
digits are left out, since nobody knows how they would be written. Every tenth template is held out for dev and the one
after it for test. espeak-ng speaks both in German; the voices of test are none of dev's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from ilme.data.domains import _INTENTS
from ilme.data.registries import fetch, members
from ilme.data.templates import Grammar

LISTS = {
    "area": ("Küche", "Wohnzimmer", "Schlafzimmer", "Bad", "Büro", "Garage", "Flur", "Esszimmer", "Dachboden"),
    "floor": ("Erdgeschoss", "erster Stock", "Keller", "Obergeschoss"),
    "name": ("Deckenlampe", "Haustür", "Kaffeemaschine", "Heizung", "Rollladen", "Fernseher", "Staubsauger", "Ofen"),
    "message": ("das Essen ist fertig", "wir fahren gleich los", "der Film fängt an", "kommt bitte nach unten"),
    "search_query": ("Jazzmusik", "die Nachrichten", "Lieder zum Laufen", "ein Klavierkonzert", "leiser Regen"),
    "zone": ("Zuhause", "Arbeit", "Schule", "Bahnhof"),
    "timer_name": ("Nudeln", "Wäsche", "Tee", "Hausaufgaben", "Pizza", "Brot", "Mittagsschlaf"),
    "timer_command": ("schalte das Licht aus", "öffne die Garage", "schließe die Rollläden"),
    "shopping_list_item": ("Milch", "Vollkornbrot", "Zitronen", "Olivenöl", "Kaffeebohnen", "Äpfel", "Batterien"),
    "todo_list_item": ("Zahnarzt anrufen", "Blumen gießen", "Miete überweisen", "Fahrrad reparieren"),
}
VOICES = {
    "dev": ("Alex", "Andrea", "Denis", "Gene", "Henrique", "Jacky", "Marco", "adam", "anika", "belinda", "f1", "m1"),
    "test": ("Alicia", "Hugo", "Lee", "Mario", "Michael", "Reed", "boris", "david", "linda", "f2", "f4", "m3"),
}
SEEDS = {"dev": 1, "test": 2}
EACH, HELD_OUT = 30, 10  # sentences of a template; every so manieth template is held out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--spoken", type=int, nargs=2, default=[30, 60], help="utterances of dev and test")
    parser.add_argument("--sentences", type=int, default=400)
    args = parser.parse_args()
    write_parts(args.work / "domains" / "commands")
    from experiments.commands_domain import draw_text

    draw_text(args.work, [args.sentences, *args.spoken], 0)
    for part, voices in VOICES.items():
        if not (args.work / part / "manifest.jsonl").exists():
            text, out = args.work / f"{part}.txt", args.work / part
            options = ["--options.accents", "de", "--options.transcript", "written", f"--options.seed={SEEDS[part]}"]
            command = [sys.executable, "-m", "ilme.cli", "data", "synth", str(text), str(out), *options]
            subprocess.run([*command, "--options.variants", *voices], check=True)


def write_parts(folder: Path) -> None:
    """train.txt, dev.txt and test.txt; templates are held out whole."""
    content = next(c for name, c in members(fetch(_INTENTS), "pypi") if name.endswith("/data/de.json"))
    grammar = Grammar.from_intents(json.loads(content))
    grammar.lists.update(LISTS)
    parts: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for number, template in enumerate(grammar.templates):
        part = {HELD_OUT - 2: "dev", HELD_OUT - 1: "test"}.get(number % HELD_OUT, "train")
        drawn = {grammar.sample(template, seed=number * 1000 + i) for i in range(EACH)}
        parts[part] |= {s for s in drawn if len(s.split()) > 2 and not any(c.isdigit() for c in s)}
    folder.mkdir(parents=True, exist_ok=True)
    for part, sentences in parts.items():
        (folder / f"{part}.txt").write_text("".join(f"{s}\n" for s in sorted(sentences)), encoding="utf-8")


if __name__ == "__main__":
    main()
