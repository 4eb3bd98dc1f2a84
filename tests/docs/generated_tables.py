"""Renders the reference parts of the documentation from the code they describe: settings, metrics, errors, commands.

Called by ``test_reference.py``, which compares the result with what is committed (and rewrites it when ``UPDATE_DOCS``
is set), so that a page cannot tell what the code no longer does. Pure: values in, Markdown out.
"""

from __future__ import annotations

import inspect
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import yaml
from pydantic import BeforeValidator

from deploy.cli.main import group
from gateway import errors
from gateway.errors import STATUS
from gateway.metrics.catalog import CATALOG, JUDGED
from gateway.metrics.variables import BUILT_IN
from gateway.settings import Settings, variables_of
from tests.kube_tools import CHART

_BLOCK: Final = "<!-- generated: {name} -->\n{text}\n<!-- end -->"
_MARK: Final = re.compile(r"<!-- generated: (\w+) -->\n(?:.*?\n)??<!-- end -->", re.S)


def settings_table() -> str:
    """Return every setting of the gateway: names, default, meaning."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        names = variables_of(name)
        default = field.get_default()
        is_duration = isinstance(default, float) and any(isinstance(one, BeforeValidator) for one in field.metadata)
        unit = " s" if is_duration else ""
        shown = f"`{default}{unit}`" if default != "" else "–"
        rows.append(
            f"| {'<br>'.join(f'`{n}`' for n in names)} | {shown} | {' '.join(str(field.description).split())} |"
        )
    return "\n".join(rows)


def metrics_table() -> str:
    """Return every metric family: name, type, labels, meaning."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{m.name}` | {m.type} | {', '.join(f'`{label}`' for label in m.labels) or '–'} | {m.help} |"
        for m in (*CATALOG, *JUDGED)
    ]
    return "\n".join(rows)


def errors_table() -> str:
    """Return every error a caller can get: status, code, whether a retry can help, meaning."""
    rows = ["| status | `code` | retry? | meaning |", "|---|---|---|---|"]
    found = [e for e in _tree(errors.GatewayError) if not issubclass(e, errors.ControlError)]
    for error in sorted(found, key=lambda e: (STATUS[e.kind], e.kind)):
        if error is errors.GatewayError:
            continue
        meaning = " ".join((inspect.getdoc(error) or "").split("\n\n")[0].split())
        rows.append(f"| {STATUS[error.kind]} | `{error.kind}` | {'yes' if error.retryable else 'no'} | {meaning} |")
    return "\n".join(rows)


def variables_table() -> str:
    """Return every built-in variable of text tasks: name, kind, meaning."""
    enums = ("language", "letter_case", "predicted_label")
    kinds = {name: "enum" if name in enums else "scalar" for name in BUILT_IN}
    rows = ["| variable | kind | meaning |", "|---|---|---|"]
    return "\n".join([*rows, *(f"| `{name}` | {kinds[name]} | {meaning} |" for name, meaning in BUILT_IN.items())])


def versions_table() -> str:
    """Return which versions of everything else fit, and with which of them it is tested: what is pinned."""
    root = Path(__file__).parents[2]
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (root / "constraints.txt").read_text(), re.M))
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    cli = next(one for one in project["optional-dependencies"]["cli"] if one.startswith("clearml-serving"))
    image = re.findall(r"^ARG TRITON_IMAGE=(\S+)", (root / "deploy/docker/triton.Dockerfile").read_text(), re.M)[0]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    rows = [
        ("Python", project["requires-python"],
         "3.11, 3.12 and 3.13, each with its numpy ([why](triton.md#the-embedded-server))"),
        ("NVIDIA Triton", "2.x with explicit model control; other frameworks and GPUs: NVIDIA's container",
         f"the server of `nvidia-pytriton` {pins['nvidia-pytriton']} ([which](triton.md)); the image "
         f"is based on `{image.rpartition(':')[2]}` and was not run on a GPU"),
        ("ClearML server", "any server that the SDK supports",
         "recorded exchanges of server 2.3.0, and the embedded server ([how](clearml.md#the-embedded-server))"),
        ("`clearml` SDK", next(one for one in project["dependencies"] if one.startswith("clearml")), pins["clearml"]),
        ("`clearml-serving` CLI", cli.replace("==", " ").partition(" ")[2] + ", unmodified", pins["clearml-serving"]),
        ("Kubernetes", chart["kubeVersion"].replace("-0", ""),
         "a recent version (`.ci/run cluster`), and the schemas of the oldest"),
    ]  # fmt: skip
    table = ["| part | compatible | tested with |", "|---|---|---|"]
    return "\n".join([*table, *(f"| {' | '.join(row)} |" for row in rows)])


def values_table() -> str:
    """Return every value of the chart, its default, and the comment above it in values.yaml."""
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, default, about in chart_values():
        rows.append(f"| `{path}` | {'' if default is None else f'`{default}`'} | {about} |")
    return "\n".join(rows)


def chart_values() -> Iterator[tuple[str, str | None, str]]:
    """Yield path, default (None for a group of values) and comment of every value in values.yaml."""
    text = (CHART / "values.yaml").read_text()
    lines = text.splitlines()

    def walk(node: yaml.MappingNode, path: str) -> Iterator[tuple[str, str | None, str]]:
        for key, value in node.value:
            above = itertools.takewhile(
                lambda line: line.strip().startswith("#"), reversed(lines[: key.start_mark.line])
            )
            about = " ".join(line.strip().removeprefix("#").strip() for line in reversed([*above]))
            name = f"{path}{key.value}"
            is_group = isinstance(value, yaml.MappingNode) and not value.flow_style
            source = text[value.start_mark.index : value.end_mark.index].splitlines()
            # The source of a block list ends at the next value, so it contains that value's comment.
            shown = " ".join(" ".join(line for line in source if not line.strip().startswith("#")).split())
            yield name, None if is_group else shown, about.replace("|", "\\|")
            if is_group:
                yield from walk(value, f"{name}.")

    yield from walk(yaml.compose(text, yaml.SafeLoader), "")


def commands_reference() -> str:
    """Return every command: its line, its help but for what the options mean, and their names and variables."""
    return "\n\n".join(_described(command, context) for command, context in commands())


def commands(
    command: click.Command = group, context: click.Context | None = None
) -> Iterator[tuple[click.Command, click.Context]]:
    """Return every command below ``command`` that does something itself."""
    context = context or click.Context(command, info_name="triton-gateway", terminal_width=80)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, click.Context(found, info_name=name, parent=context, terminal_width=80))
    else:
        yield command, context


PARTS: Final = {
    "variables": variables_table, "settings": settings_table, "metrics": metrics_table, "errors": errors_table,
    "commands": commands_reference,
    "versions": versions_table, "values": values_table,
}  # fmt: skip
"""What a page can ask for with ``<!-- generated: NAME -->`` … ``<!-- end -->``."""


def refresh(page: str) -> str:
    """Return ``page`` with every generated block brought up to date."""
    return _MARK.sub(lambda found: _BLOCK.format(name=found[1], text=PARTS[found[1]]()), page)


def _tree(error: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    yield error
    for sub in error.__subclasses__():
        # Any other is a module's own, which callers see as the error it is a kind of.
        if sub.kind != error.kind or error is errors.GatewayError:
            yield from _tree(sub)


def _described(command: click.Command, context: click.Context) -> str:
    told = inspect.cleandoc(command.help or "")
    text, _, examples = told.partition("\b\nExample")
    shown = [line.strip() for line in examples.splitlines()[1:] if line.strip()]
    continued = re.sub(r"\\\n(?:\$ )?", "\\\\\n      ", "\n".join(f"$ {line}" for line in shown))
    parts = [f"## {context.command_path}", f"`{context.get_usage().removeprefix('Usage: ')}`".replace("\n", " ")]
    parts += [" ".join(paragraph.replace("\b", "").split()) for paragraph in text.strip().split("\n\n")]
    parts += [f"```console\n{continued}\n```"] if shown else []
    options = [_option(option, context) for option in command.params if isinstance(option, click.Option)]
    parts += [f"Options: {', '.join(options)}."] if options else []
    return "\n\n".join(" ".join(part.split()) if part.startswith("`triton") else part for part in parts)


def _option(option: click.Option, context: click.Context) -> str:
    """Return an option's name, and the variable that sets it."""
    told = option.get_help_record(context)
    assert told is not None
    variables = [f"`{name}`" for name in option.get_help_extra(context).get("envvars", ())]
    return f"`{told[0]}`{f' ({variables[0]})' if variables else ''}"
