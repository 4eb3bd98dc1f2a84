"""The ``clearml-serving`` command that adds an endpoint or an auto-update rule as the serving Task has it. Pure.

What the command takes from files (code, a config.pbtxt) is in the Task as an address or as text: the command names a
file to be put there, and a comment behind it says what belongs into it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from deploy.controller.registry import spec

_PLAIN: Final = re.compile(r"[\w.\-/:]+")


def adding(task_id: str, one: spec.EndpointSpec) -> str:
    """Return the command that adds an endpoint to the serving Task ``task_id``."""
    chosen = [*_option("--version", one.version), *_option("--model-id", one.model_id or "")]
    return _line(["--id", task_id, "model", "add"], chosen, one, one.endpoint)


def adding_rule(task_id: str, rule: spec.MonitoringSpec) -> str:
    """Return the command that adds an auto-update rule to the serving Task ``task_id``."""
    chosen = [
        *_option("--max-versions", str(rule.max_versions or "")), *_option("--name", rule.name or ""),
        *_option("--project", rule.project or ""), *(["--tags", *rule.tags] if rule.tags else []),
        *(["--published"] if rule.only_published else []),
    ]  # fmt: skip
    return _line(["--id", task_id, "model", "auto-update"], chosen, rule.template, rule.endpoint)


def _line(begun: list[str], chosen: list[str], one: spec.EndpointSpec, endpoint: str) -> str:
    words = [*begun, "--engine", one.engine, "--endpoint", endpoint, *chosen]
    for side, tensors in (("input", one.inputs), ("output", one.outputs)):
        if tensors:
            words += [f"--{side}-name", *(tensor.name for tensor in tensors)]
            words += [f"--{side}-type", *(tensor.dtype for tensor in tensors)]
            words += [f"--{side}-size", *(json.dumps(list(tensor.shape)) for tensor in tensors)]
    pairs = [*_pairs(one.auxiliary_pairs), *(f"gateway.{name}={_value(value)}" for name, value in one.options)]
    files = []
    if one.auxiliary_pbtxt:
        pairs, files = ["CONFIG"], ["CONFIG: the config.pbtxt that it had"]
    words += ["--aux-config", *pairs] if pairs else []
    if one.preprocess is not None:
        words += ["--preprocess", "CODE"]
        files.append(f"CODE: {one.preprocess.uri}")
    return f"clearml-serving {shlex.join(words)}" + (f"  # {'; '.join(files)}" if files else "")


def _option(name: str, value: str) -> list[str]:
    return [name, value] if value else []


def _pairs(nested: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{path}{key}.")
        else:
            yield f"{path}{key}={_value(value)}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else json.dumps(value)
