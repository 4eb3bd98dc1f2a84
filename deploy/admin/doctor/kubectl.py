"""kubectl as a function, and what its refusals mean. Reads only, with the caller's own rights."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from deploy.admin.doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class Reply:
    """What kubectl said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the output decoded, None when there is none."""
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
        """Run one command; a program that is not there or hangs is a failure like any other."""
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
        """Return every object of a kind in the namespace; none if there is no such kind, or it may not be seen."""
        found = self("get", kind, *arguments, "--output=json").json()
        return list(found.get("items", [])) if isinstance(found, dict) else []


def unseen(subject: str, reply: Reply, remedy: str) -> Finding:
    """Tell what does not exist from what may not be seen."""
    if "orbidden" in reply.err:
        return Finding(subject, "note", f"cannot be seen with your rights: {last_line(reply.err)}", remedy)
    return Finding(subject, "missing", last_line(reply.err) or "not there", remedy)


def last_line(text: str) -> str:
    """Return the last line of what was said, 300 characters of it."""
    return text.strip().splitlines()[-1][:300] if text.strip() else ""
