"""`ilme doctor`: what this machine has, and what to do about each problem."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict

MARKS = {"fine": "ok", "note": "note", "problem": "PROBLEM"}


def doctor(json: bool = False) -> int:
    """Look at this machine: processor, threads, memory, GPU, extras, weights; and say what to do about each problem.

    The exit status is 1 if there is a problem.

    Example:
        ilme doctor

    Args:
        json: Print JSON instead of a table.
    """
    from ilme.workflows.doctor import examine

    findings = examine()
    if json:
        print(json_format.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            print(f"{MARKS[finding.verdict]:<8} {finding.what:<{width}}  {finding.found}")
            if finding.advice:
                print(f"{'':<8} {'':<{width}}  → {finding.advice}")
    return int(any(finding.verdict == "problem" for finding in findings))
