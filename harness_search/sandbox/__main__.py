"""`python -m harness_search.sandbox`: what the sandbox enforces on this machine, and an honest try at breaking it.

Exit status: 0 when nothing escaped, 1 when something did, 2 when there is no sandbox.
"""

import argparse
import json
import sys

from harness_search.sandbox.backends import SandboxUnavailable, detect
from harness_search.sandbox.preflight import PreflightReport, preflight


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness_search.sandbox", description=__doc__)
    parser.add_argument("--sandbox", default="auto", help="auto, bubblewrap, landlock or none (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    flags = parser.parse_args(arguments)
    try:
        report = preflight(detect(flags.sandbox))
    except SandboxUnavailable as error:
        if flags.json:
            print(json.dumps({"backend": None, "enforced": [], "attempts": [], "escapes": [], "error": str(error)}))
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report.to_json()) if flags.json else describe(report))
    return 1 if report.escapes else 0


def describe(report: PreflightReport) -> str:
    """The report as text for people."""
    lines = [f"backend: {report.backend}", "enforced:", *(f"  {item}" for item in report.enforced), "attempts:"]
    lines += [f"  {attempt.held:9}  {attempt.name}: {attempt.detail}" for attempt in report.attempts]
    verdict = f"{len(report.escapes)} ESCAPED" if report.escapes else "none escaped"
    return "\n".join([*lines, f"{len(report.attempts)} attempts, {verdict}"])


if __name__ == "__main__":
    sys.exit(main())
