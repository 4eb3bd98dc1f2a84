"""How the tests look at rendered objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
import pytest

from deploy.cli.main import group
from gateway import settings
from gateway.settings import Settings

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]


def variables_of(command: str) -> set[str]:
    """The variables that a sub-command reads: gateways' settings, or those of its options."""
    if command == "serve":
        return {variable for field in Settings.model_fields for variable in settings.variables_of(field)}
    found = group.get_command(click.Context(group), command)
    assert found is not None, command
    given = [parameter.envvar or [] for parameter in found.params]
    return {name for names in given for name in ([names] if isinstance(names, str) else names)}


def read_settings(variables: Mapping[str, str]) -> Settings:
    """The gateway's settings of these variables; others are left out."""
    names = {name for field in Settings.model_fields for name in settings.variables_of(field)}
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.delenv(name, raising=False)
        for name in names & variables.keys():
            patch.setenv(name, variables[name])
        return Settings()


def of(objects: Objects, *kinds: str) -> Objects:
    """Objects of some kinds."""
    return [each for each in objects if each["kind"] in kinds]


def named(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    """One object."""
    [found] = [each for each in of(objects, kind) if name == each["metadata"]["name"]]
    return found


def pods(objects: Objects) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Name, labels and spec of every pod that the objects lead to."""
    for each in of(objects, "Deployment"):
        template = each["spec"]["template"]
        yield each["metadata"]["name"], template["metadata"]["labels"], template["spec"]


def containers(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """POD/NAME and spec of every container."""
    for name, _, spec in pods(objects):
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield f"{name}/{container['name']}", container


def environment(objects: Objects, container: Mapping[str, Any]) -> dict[str, str]:
    """Variables with a value that is written down: ConfigMaps, then its own; `$(NAME)` as the kubelet replaces it."""
    found: dict[str, str] = {}
    for each in container.get("envFrom", []):
        found |= named(objects, "ConfigMap", each["configMapRef"]["name"])["data"]
    for entry in container.get("env", []):
        if "value" in entry:
            found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), entry["value"])
    return found


def entries(value: Any, field: str) -> Iterator[Any]:
    """Every value of a field, wherever it is."""
    for key, each in value.items() if isinstance(value, dict) else ((None, one) for one in value):
        if key == field:
            yield each
        if isinstance(each, dict | list):
            yield from entries(each, field)


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether matchLabels select."""
    return selector.items() <= labels.items()


def labels_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """The labels by which a Deployment, Service, budget or policy selects pods."""
    selector = spec.get("podSelector", spec.get("selector", {}))
    return dict(selector.get("matchLabels", selector))
