"""``python -m benchmarks``: measure, report, profile."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_STATE = Path(".triton-gateway/bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run one of the commands."""
    given = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=_STATE, help=f"everything kept between runs [{_STATE}]")
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="measure and report (the default)")
    report = commands.add_parser("report", help="report a run again")
    profile = commands.add_parser("profile", help="say where the gateway's CPU time goes")
    for one in (parser, run):
        one.add_argument("--quick", action="store_true", help="the main ratios in a few minutes")
        one.add_argument("--name", default="", help="of the run; an unfinished run of this name goes on")
        for part in ("backend", "system", "texts"):
            one.add_argument(f"--{part}", action="append", default=[], help="only this one; may be repeated")
        one.add_argument("--connections", action="append", type=int, default=[], help="only this many; as above")
        one.add_argument("--rounds", type=int, default=0, help="rounds of every cell")
        one.add_argument("--seconds", type=float, default=0.0, help="seconds of every cell")
        one.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md and its plots")
    report.add_argument("name")
    report.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md and its plots")
    profile.add_argument("--backend", default="instant")
    profile.add_argument("--texts", default="short")
    profile.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args(given)
    state = options.state_dir.absolute()
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {text}\n")
        sys.stderr.flush()

    from benchmarks.servers import ServerFailed
    from benchmarks.systems import NotAvailable

    try:
        match options.command:
            case "report":
                from benchmarks.report import report as show
                from benchmarks.run import collect

                found = collect(state / "runs" / options.name)
                show(found, name=options.name, state=state, write_docs=options.write_docs, say=say)
            case "profile":
                from benchmarks.profile import profile as look

                look(state, backend=options.backend, texts=options.texts, seconds=options.seconds, say=say)
            case _:
                return _run(options, state, f"python -m benchmarks {shlex.join(given)}".strip(), say)
    except (ServerFailed, NotAvailable) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(options: argparse.Namespace, state: Path, command: str, say: Callable[[str], None]) -> int:
    from dataclasses import replace

    from benchmarks import plan
    from benchmarks.report import report as show
    from benchmarks.run import run

    scenarios = list(plan.narrowed(
        plan.quick() if options.quick else plan.full(), backends=options.backend, systems=options.system,
        texts=options.texts, connections=options.connections,
    ))  # fmt: skip
    if not scenarios:
        sys.stderr.write("no scenario is left: see benchmarks/plan.py\n")
        return 2
    scenarios = [replace(s, rounds=options.rounds or s.rounds, seconds=options.seconds or s.seconds) for s in scenarios]
    name = options.name or time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    found = run(scenarios, state=state, name=name, command=command, say=say)
    show(found, name=name, state=state, write_docs=options.write_docs, say=say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
