"""Runs kubectl, and turns its errors into findings. Only reads, with the caller's own rights."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from deploy.cli.doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class Reply:
    """The exit code and output of kubectl."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the decoded JSON output; None if kubectl failed or printed no JSON."""
        try:
            return json.loads(self.out) if self.code == 0 else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl against one namespace of one context."""

    namespace: str
    context: str = ""
    program: str = "kubectl"

    def __call__(self, *arguments: str) -> Reply:
        """Run one command. A missing program is exit code 127, no answer within 30 s is 124."""
        command = [self.program, *(("--context", self.context) if self.context else ())]
        command += ["--namespace", self.namespace, "--request-timeout=10s", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except FileNotFoundError:
            return Reply(127, "", f"{self.program} is not installed")
        except subprocess.TimeoutExpired:
            return Reply(124, "", "kubectl did not answer within 30 s")
        return Reply(done.returncode, done.stdout, done.stderr.strip())

    def items(self, kind: str, *arguments: str) -> list[dict[str, Any]]:
        """Return all objects of a kind in the namespace; empty if there is no such kind or it may not be read."""
        found = self("get", kind, *arguments, "--output=json").json()
        return list(found.get("items", [])) if isinstance(found, dict) else []


def unseen(subject: str, reply: Reply, remedy: str) -> Finding:
    """Return a note if ``reply`` is a refusal for lack of rights, otherwise that ``subject`` is missing."""
    if "orbidden" in reply.err:
        return Finding(subject, "note", f"you have no permission to read it: {last_line(reply.err)}", remedy)
    return Finding(subject, "missing", last_line(reply.err) or "not found", remedy)


def last_line(text: str) -> str:
    """Return the last line of ``text``, at most 300 characters."""
    return text.strip().splitlines()[-1][:300] if text.strip() else ""
