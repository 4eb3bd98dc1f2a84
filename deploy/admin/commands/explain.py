"""``triton-gateway drift explain``: how the texts of one time or version differ from those of another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from deploy.admin import data_rows, payload_texts
from deploy.admin.commands._options import AGE, chosen_state_dir, state_dir_option
from deploy.admin.payload_texts import Read, Wanted
from deploy.tools.errors import DeployError

if TYPE_CHECKING:
    from deploy.admin.domain_classifier import Comparison, Word

_LEAST: Final = 50
"""Texts that each side needs."""
_MAX_CHARS: Final = 160
"""Characters of a text that are shown."""


class _Time(click.ParamType):  # type: ignore[type-arg] # as in _options
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return an ISO time (UTC unless it names a zone), or the time before now for an age like ``2h``."""
        if isinstance(value, datetime):
            return value
        try:
            at = datetime.fromisoformat(str(value).strip().removesuffix(" UTC"))
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at
        except ValueError:
            pass
        try:
            return datetime.now(UTC) - timedelta(seconds=AGE.convert(value, param, ctx))
        except (click.UsageError, OverflowError):
            self.fail(f"{value!r} is not a time: write 2026-11-20T08:30 (UTC), or how long ago (2h, 3d)", param, ctx)


TIME = _Time()
LOG = click.option(
    "--log", "log", type=click.Path(path_type=Path), envvar="TRITON_GATEWAY_PAYLOAD_LOG_TO", show_envvar=True,
    help="Payload log: its folder, or one file of it.  [default: payloads in the state directory]",
)  # fmt: skip


@click.command(name="explain")
@click.option("--endpoint", required=True, help="Endpoint whose texts are compared, e.g. `sentiment`.")
@click.option("--version", "version", help="Only texts of this version.")
@click.option("--since", type=TIME, metavar="TIME", help="Compare texts from this time on with earlier texts. A time "
"in UTC (`2026-11-20T08:30`) or an age (`2h`).")  # fmt: skip
@click.option("--from", "start", type=TIME, metavar="TIME", help="Ignore texts before this time.")
@click.option("--to", "end", type=TIME, metavar="TIME", help="Ignore texts from this time on.")
@click.option("--compare", metavar="VERSION", help="Compare the texts of --version with those of VERSION.")
@click.option("--against", type=click.Path(path_type=Path), help="Compare with the texts of this data set, e.g. the "
"training data. Reads the files that `drift capture --from` reads.")  # fmt: skip
@click.option("--text-column", default="text", show_default=True, help="With --against: name of the text column.")
@LOG
@click.option("--most", default=2000, show_default=True, type=click.IntRange(_LEAST, 20_000),
              help="Largest number of texts on each side. If there are more, a sample is drawn, the same one every "
              "time.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@state_dir_option
def command(
    endpoint: str, version: str | None, since: datetime | None, start: datetime | None, end: datetime | None,
    compare: str | None, against: Path | None, text_column: str, log: Path | None, most: int, as_json: bool,
) -> int:  # fmt: skip
    """Show which words and texts distinguish later texts from earlier ones in a payload log, if any do.

    A classifier learns on a part of the texts to distinguish the two groups, and is tested on the rest. AUC is how
    often it ranks a later text above an earlier one; 50 % is guessing. The AUC of shuffled texts is printed beside it.
    Words and examples are shown as the payload log recorded them, redacted if the log redacts.

    The exit code is 3 if the groups differ, else 0.

    \b
    Examples:
      triton-gateway drift explain --endpoint sentiment --since 2026-11-20T08:30
      triton-gateway drift explain --endpoint sentiment --from 1d --against train.csv --text-column review
      triton-gateway drift explain --endpoint sentiment --version 2 --compare 1 --from 2h
    """
    from deploy.admin import domain_classifier

    if sum(one is not None for one in (since, compare, against)) != 1:
        raise click.UsageError("give one of --since, --compare and --against: what to compare the texts with")
    if compare is not None and version is None:
        raise click.UsageError("--compare needs --version: the version to compare with VERSION")
    endpoint = endpoint.strip("/")
    where = log or chosen_state_dir().root / "payloads"
    later = Wanted(endpoint, version, since or start, end)
    earlier = Wanted(endpoint, compare or version, start, since or end)
    now = _sample(where, later, most, "later texts" if since else "texts")
    if against is not None:
        empty = list[str]()
        rows = data_rows.texts_of(data_rows.read(against), against, text_column, None, empty)
        before = _enough([one.text for one in data_rows.sample(rows, most)], str(against))
    else:
        before = _sample(where, earlier, most, "earlier texts" if since else f"texts by version {compare}")
    found = domain_classifier.compare(before, now)
    if as_json:
        values = {**asdict(found), "is_apart": found.is_apart, "is_nothing": found.is_nothing, "share": found.share}
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        for line in _report(found):
            click.echo(line)
    return 0 if found.is_nothing else 3


def _sample(where: Path, wanted: Wanted, most: int, kind: str) -> list[str]:
    read = Read()
    found = data_rows.sample(payload_texts.texts(where, wanted, read), most)
    if read.unreadable:
        click.echo(f"{read.unreadable} lines of {where} are not valid records and were skipped", err=True)
    hint = f"{where} has {read.records} matching requests; use a longer time"
    if not read.records and wanted.endpoint not in read.endpoints:
        hint = f"{where} has requests of {', '.join(sorted(read.endpoints)) or 'no endpoint'}"
    return _enough(found, f"{kind} of {wanted.endpoint}", hint)


def _enough(found: list[str], what: str, hint: str = "") -> list[str]:
    if len(found) < _LEAST:
        raise DeployError(
            f"too few texts to compare: {what}: {len(found)}; {_LEAST} are needed", hint=hint or "use more texts"
        )
    return found


def _report(found: Comparison) -> Iterator[str]:
    yield f"{found.now:,} texts compared with {found.before:,}"
    yield (
        f"AUC {found.auc:.1%} ({found.low:.1%} to {found.high:.1%} in 95 of 100 cases); shuffled texts stay below "
        f"{found.chance:.1%} in 99 of 100"
    )
    if found.is_nothing:
        yield "no difference found: neither by the classifier nor in a single word"
        return
    if found.is_apart:
        yield f"the texts differ, as if about {found.share:.0%} of the later ones were of another kind"
    else:
        yield "the classifier finds no difference, but single words or texts differ:"
    for name, words in (("rose", found.rose), ("fell", found.fell)):
        if words:
            yield f"words that {name}: {', '.join(_share(one) for one in words)}"
    for text in found.often:
        yield f"repeated text: {_share(text)}"
    if found.is_apart:
        yield from _examples("later texts that are least like the earlier ones", found.like_now)
        yield from _examples("earlier texts that are least like the later ones", found.like_before)


def _share(one: Word) -> str:
    return f"{_shown(one.word)} {one.now:.1%} (was {one.before:.1%})"


def _examples(title: str, texts: Sequence[str]) -> Iterator[str]:
    yield f"{title}:"
    yield from (f"  {_shown(text)}" for text in texts)


def _shown(text: str) -> str:
    plain = "".join(one if one.isprintable() else " " for one in text)
    return plain if len(plain) <= _MAX_CHARS else f"{plain[: _MAX_CHARS - 1]}…"
