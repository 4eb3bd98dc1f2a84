"""A fake kubectl with answers that tests choose."""

from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.doctor.kube import Kubectl
from tests.unit.deploy.cli.doctor.kubectl_says import HEAD, HEALTHY, TAIL


@pytest.fixture
def kubectl(tmp_path: Path) -> Any:
    """Build a kubectl with the answers of a healthy cluster, of which a test replaces some."""

    def make(**changed: tuple[int, Any, str] | None) -> Kubectl:
        says = {**HEALTHY, **{name.replace("_", " "): said for name, said in changed.items()}}
        # what is more specific is asked first
        ordered = dict(sorted(((k, v) for k, v in says.items() if v), key=lambda item: -len(item[0])))
        cases = []
        for number, (part, (code, out, err)) in enumerate(ordered.items()):
            (tmp_path / f"out-{number}").write_text((out if isinstance(out, str) else json.dumps(out)) + "\n")
            (tmp_path / f"err-{number}").write_text(err + "\n")
            cases.append(f"*{shlex.quote(part)}*) cat out-{number}; cat err-{number} >&2; exit {code} ;;\n")
        script = tmp_path / "kubectl"
        script.write_text(HEAD + "".join(cases) + TAIL)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return Kubectl("triton-gateway", program=str(script))

    return make
