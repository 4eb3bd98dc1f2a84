"""``triton-gateway keys``: create, list and revoke API keys."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from deploy.cli import key_file
from deploy.cli.commands._options import OpenRegistry, registry_options, who
from deploy.tools.errors import DeployError
from gateway.callers import keys as callers
from gateway.callers import rights

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options for the place of the keys; it gets ``store``."""

    @click.option(
        "--file", "path", type=click.Path(path_type=Path, dir_okay=False), envvar="TRITON_GATEWAY_KEYS_FILE",
        show_envvar=True, help="File of the keys. The first `create` makes it.",
    )  # fmt: skip
    @click.option("--registry", is_flag=True, help="Keep the keys beside the serving Task instead of in a file, so "
                  "that one command reaches every gateway.")  # fmt: skip
    @registry_options
    @functools.wraps(function)
    def wrapped(*args: Any, path: Path | None, registry: bool, open_registry: OpenRegistry, **kwargs: Any) -> Any:
        if registry:
            return function(*args, store=key_file.RegistryKeyStore(open_registry(), by=who()), **kwargs)
        if path is None:
            raise DeployError("the place of the keys is not given", hint="give --file keys.json, or --registry")
        if function.__name__ != "create" and not path.exists():
            raise DeployError(f"there is no file {path}", hint="`triton-gateway keys create` creates it")
        return function(*args, store=key_file.KeyFileStore(path), **kwargs)

    return wrapped


@click.group(name="keys")
def command() -> None:
    """Create, list and revoke API keys.

    A key is shown once, when it is created. The file holds only a hash of it. Mount it into the gateway and set
    TRITON_GATEWAY_KEYS_FILE. Each worker uses a changed file within two seconds.

    \b
    Examples:
      triton-gateway keys create --file keys.json --tenant search-team --endpoints 'embed*' --expires 90d
      triton-gateway keys create --file keys.json --tenant prometheus --operations metrics
      triton-gateway keys list --file keys.json
      triton-gateway keys revoke --file keys.json abcd2345
      triton-gateway keys create --registry --tenant search-team
      curl -H "Authorization: Bearer tgk_…" http://gateway:8080/serve/embed -d '{"text": "hello"}'
    """


@command.command(name="create")
@click.option("--tenant", required=True,
              help="Tenant that the key belongs to, e.g. a team. Quotas and usage are counted per tenant.")  # fmt: skip
@click.option("--class", "priority", default="default", show_default=True,
              help="Priority class of the key's requests: critical, default or batch.")  # fmt: skip
@click.option(
    "--endpoints", multiple=True, metavar="PATTERN…",
    help="Endpoints that the key may call: `sentiment` (all versions), `sentiment/2`, `team-*`. Comma separated, or "
    "repeat the option.  [default: *]",
)  # fmt: skip
@click.option(
    "--operations", multiple=True, metavar="NAME…",
    help="Operations that the key allows: infer, metadata (lists and descriptions), metrics, status (page, lineage)."
    "  [default: infer,metadata]",
)  # fmt: skip
@click.option(
    "--expires", default="", help="When the key expires: 90d, 12h, 2027-01-31, 2027-01-31T12:00Z.  [default: never]"
)
@click.option("--note", default="", help="Note about its purpose, shown by `list`.")
@_store_options
@_JSON
def create(
    store: key_file.KeyStore, tenant: str, priority: str, endpoints: tuple[str, ...],
    operations: tuple[str, ...], expires: str, note: str, as_json: bool,
) -> int:  # fmt: skip
    """Create a key and print it. It is never shown again."""
    now = time.time()
    text, key = key_file.new_key(callers.Key(
        "", "", tenant, priority, _several(endpoints, "--endpoints") or rights.ANYTHING,
        _several(operations, "--operations") or (rights.INFER, rights.METADATA), key_file.time_of(expires, now), "",
        callers.written(now), who(), note,
    ))  # fmt: skip
    with store.editing() as keys:
        keys.append(key)
    if as_json:
        click.echo(json.dumps({"key": text, "id": key.id, "tenant": key.tenant, "expires": key.expires or None}))
        return 0
    click.echo(text)
    end = f" and expires {key.expires}" if key.expires else ""
    click.echo(f"{key.id} of {key.tenant} is in {store}{end}; the key is shown only this once", err=True)
    return 0


@command.command(name="list")
@_store_options
@_JSON
def list_(store: key_file.KeyStore, as_json: bool) -> int:
    """List all keys: id, tenant, rights and expiry, but never the key itself."""
    now = time.time()
    rows = [(key, key_file.state_of(key, now)) for key in store.read()]
    if as_json:
        shown = [{**key.to_json(), "state": state} for key, state in rows]
        click.echo(json.dumps([{k: v for k, v in row.items() if k != "hash"} for row in shown], indent=1))
        return 0
    for key, state in rows:
        end = f" until {key.expires}" if key.expires else ""
        click.echo(
            f"{key.id}  {state:8}  {key.tenant} ({key.priority})  {','.join(key.operations)} on "
            f"{','.join(key.endpoints)}{end}{f'  {key.note}' if key.note else ''}"
        )
    return 0


@command.command(name="revoke")
@click.argument("key_ids", metavar="ID…", nargs=-1, required=True)
@_store_options
def revoke(store: key_file.KeyStore, key_ids: tuple[str, ...]) -> int:
    """Revoke keys at once and for good. They stay in the list, so callers get an error that says "revoked"."""
    with store.editing() as keys:
        for place in (_place_of(keys, key_id) for key_id in key_ids):
            key = keys[place]
            keys[place] = replace(key, revoked=key.revoked or callers.written(time.time()))
    click.echo(f"revoked: {', '.join(key_ids)}")
    return 0


def _place_of(keys: list[callers.Key], key_id: str) -> int:
    for place, key in enumerate(keys):
        if key.id == key_id:
            return place
    known = ", ".join(key.id for key in keys[:10]) or "none"
    raise DeployError(f"there is no key {key_id}", hint=f"known keys: {known} (see `triton-gateway keys list`)")


def _several(given: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Return the comma-separated values of an option. Raises ``DeployError`` if it was given but is empty.

    An empty shell variable must not create a key for everything.
    """
    found = tuple(part.strip() for one in given for part in one.split(",") if part.strip())
    if given and not found:
        raise DeployError(f"{option} is empty", hint="leave the option out for its default")
    return found
