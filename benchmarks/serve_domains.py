"""Memory of a decoding process with several domains of one model, sharing its weights and each with its own.

python -m benchmarks.serve_domains --model tiny.en.pt --domains 3 --json out/serve-domains.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.timing import forget_peak, publish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled/rnnt")
    parser.add_argument("--domains", type=int, default=3)
    parser.add_argument("--here", choices=("shared", "apart"), help="load them and print the memory after each")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(loaded(args.model, args.domains, args.here == "shared")))
        return
    found = {}
    for how in ("shared", "apart"):
        call = [sys.executable, "-m", "benchmarks.serve_domains", "--model", args.model, "--here", how]
        call += ["--domains", str(args.domains)]
        out = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[how] = dict(zip((str(n) for n in range(args.domains + 1)), json.loads(out.splitlines()[-1]), strict=True))
    publish({"model": Path(args.model).name, "MB with so many domains": found}, args.json)


def loaded(model: str, count: int, shared: bool) -> list[float]:
    """Resident MB before the first domain and after each."""
    from ilme.recogniser.loading import load_model
    from ilme.recogniser.shared_models import SharedModels
    from ilme.runtime.memory import give_back_memory
    from ilme.workflows.transcribe import Job

    Job(model="bundled/aed").load()  # whatever is imported once
    give_back_memory()
    load = SharedModels() if shared else load_model
    kept, memory = [], [round(forget_peak(), 1)]
    for _ in range(count):
        kept.append(Job(model=model).load(load))
        give_back_memory()
        memory.append(round(forget_peak(), 1))
    return memory


if __name__ == "__main__":
    main()
