"""What a panel is (data) and how it becomes Grafana's JSON: the only file that knows grafana-foundation-sdk.

``boards`` declares panels; ``build`` writes them. Widths are of 24 columns; rows fill from left to right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from grafana_foundation_sdk.builders import barchart, common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    DataSourceRef,
    FieldTextAlignment,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TableAutoCellOptions,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataTransformerConfig,
    DynamicConfigValue,
    GridPos,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

Kind = Literal["lines", "stacked", "stat", "heatmap", "bars", "table"]

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH: Final = 24
TAG: Final = "triton-gateway"
_FIRST: Final = ("alertname", "severity", "endpoint", "version", "variable", "bin")
"""Columns of tables, in order; others follow."""
_LEAST_WIDTH: Final = 80
"""Least width of a column: with Grafana's 150, five columns are wider than half a row."""
_LITTLE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the name of its series."""

    expr: str
    legend: str = ""
    has_exemplars: bool = False
    """If true, trace ids of single requests are drawn as points over the series."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``thresholds``: (value, colour) above the first colour, green."""

    title: str
    description: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    unit: str = "short"
    width: int = 8
    height: int = 8
    thresholds: tuple[tuple[float, str], ...] = ()
    least: float | None = 0.0
    most: float | None = None
    values: tuple[str, ...] = ()
    """For a table: names of the columns with each query's value; without names there are none."""
    if_empty: str = ""
    """Shown instead of "no data"."""
    links: tuple[tuple[str, str], ...] = ()
    """(title, address) pairs that each value links to; ``${__data.fields.LABEL}`` is the row's label."""


@dataclass(frozen=True, slots=True)
class Section:
    """A row of panels under a title. One that ``is_folded`` opens on a click and sends no queries until then."""

    title: str
    panels: tuple[Panel, ...]
    is_folded: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A template variable filled from label values. ``one``: exactly one value, else any number or all."""

    name: str
    label: str
    query: str
    one: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. ``uid`` never changes, because links contain it."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    sections: tuple[Section, ...]

    def panels(self) -> list[Panel]:
        """Return every panel, in order."""
        return [panel for section in self.sections for panel in section.panels]


def render(board: Board, annotations: Sequence[tuple[str, str, str]] = ()) -> str:
    """Return the board as JSON that Grafana imports; ``annotations`` are (name, expression, colour)."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .link(
            dashboard.DashboardLink("triton-gateway")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in board.variables:
        chosen = (
            dashboard.QueryVariable(variable.name)
            .label(variable.label)
            .datasource(SOURCE)
            .query(variable.query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.NATURAL_ASC)
        )
        if not variable.one:
            everything = VariableOption(text="All", value="$__all")
            chosen = chosen.multi(True).include_all(True).all_value(".*").current(everything)
        made = made.with_variable(chosen)
    for name, expr, colour in annotations:
        made = made.annotation(
            dashboard.AnnotationQuery()
            .name(name)
            .title_format(name)
            .datasource(SOURCE)
            .expr(expr)
            .icon_color(colour)
            .enable(True)
        )
    top = 0
    number = 0
    for section in board.sections:
        number += 1
        place = GridPos(h=1, w=WIDTH, x=0, y=top)
        row = dashboard.Row(section.title).id(number).grid_pos(place).collapsed(section.is_folded)
        top += 1
        below, left, tallest = top, 0, 0
        panels = []
        for panel in section.panels:
            if left + panel.width > WIDTH:
                below, left, tallest = below + tallest, 0, 0
            number += 1
            place = GridPos(h=panel.height, w=panel.width, x=left, y=below)
            panels.append(_panel(panel).id(number).grid_pos(place))
            left, tallest = left + panel.width, max(tallest, panel.height)
        if section.is_folded:  # Grafana keeps them inside their row, and moves the panels below when it is opened
            for made_panel in panels:
                row = row.with_panel(made_panel)
            made = made.with_row(row)
            continue
        made, top = made.with_row(row), below + tallest
        for made_panel in panels:
            made = made.with_panel(made_panel)
    return json.dumps(json.loads(JSONEncoder(sort_keys=True).encode(made.build())), indent=1, sort_keys=True) + "\n"


def _panel(panel: Panel) -> Any:
    made = _KINDS[panel.kind](panel)
    made = made.title(panel.title).description(panel.description).datasource(SOURCE)
    # Grafana would give a unit to every label that looks like a number: version "1 days".
    made = made.unit("string" if panel.kind == "table" else panel.unit)
    if panel.least is not None and panel.kind != "table":
        made = made.min(panel.least)
    if panel.most is not None:
        made = made.max(panel.most)
    if panel.if_empty:
        made = made.no_value(panel.if_empty)
    steps = [Threshold(value=None, color="green"), *(Threshold(value=v, color=c) for v, c in panel.thresholds)]
    made = made.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.links:
        made = made.data_links(
            [
                dashboard.DashboardLink(title).type(DashboardLinkType.LINK).url(url).target_blank(True)
                for title, url in panel.links
            ]
        )
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        made = made.with_target(_target(panel, letter, query))
    return made


def _target(panel: Panel, letter: str, query: Query) -> Any:
    target = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(SOURCE)
    if query.legend:
        target = target.legend_format(query.legend)
    if query.has_exemplars:
        target = target.exemplar(True)
    if panel.kind == "heatmap":
        return target.format(PromQueryFormat.HEATMAP).range()
    if panel.kind in ("bars", "table"):
        return target.format(PromQueryFormat.TABLE).instant()
    return target.instant() if panel.kind == "stat" else target.range()


def _lines(panel: Panel) -> Any:
    made = timeseries.Panel().line_width(2).fill_opacity(8).tooltip(common.VizTooltipOptions())
    if panel.unit == "percentunit" and panel.most is None:
        made = made.axis_soft_max(_LITTLE)  # an axis of only zeros would go up to 10,000 %
    if panel.thresholds:
        made = made.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    return made.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
        .sort_by("Last *")
        .sort_desc(True)
    )


def _stacked(panel: Panel) -> Any:
    return _lines(panel).fill_opacity(40).stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))


def _stat(_panel: Panel) -> Any:
    return stat.Panel()


def _heatmap(_panel: Panel) -> Any:
    return (
        heatmap.Panel()
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(32))
    )


def _bars(_panel: Panel) -> Any:
    # Two instant tables, joined bin by bin: current shares and the reference's.
    return (
        barchart.Panel()
        .with_transformation(DataTransformerConfig(id_val="joinByField", options={"byField": "order", "mode": "outer"}))
        .with_transformation(
            DataTransformerConfig(
                id_val="convertFieldType",
                options={"conversions": [{"targetField": "order", "destinationType": "number"}], "fields": {}},
            )
        )
        .with_transformation(DataTransformerConfig(id_val="sortBy", options={"sort": [{"field": "order"}]}))
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time 1": True, "Time 2": True, "bin 2": True, "order": True},
                    "renameByName": {"Value #A": "now", "Value #B": "reference", "bin 1": "bin"},
                },
            )
        )
        .override_by_name("bin", [DynamicConfigValue(id_val="unit", value="string")])  # otherwise bin 3 would be "300%"
        .x_field("bin")
        .group_width(0.9)
    )


def _table(panel: Panel) -> Any:
    made = table.Panel().cell_options(TableAutoCellOptions()).align(FieldTextAlignment.AUTO).inspect(False)
    made = made.min_width(_LEAST_WIDTH)
    for name in panel.values:
        made = made.override_by_name(name, [DynamicConfigValue(id_val="unit", value=panel.unit)])
    columns = ["Value"]
    if len(panel.queries) > 1:  # Grafana shows only one of several tables unless they are merged
        made = made.with_transformation(DataTransformerConfig(id_val="merge", options={}))
        columns = [f"Value #{letter}" for letter, _ in zip("ABCDEFGH", panel.queries, strict=False)]
    names = dict(zip(columns, panel.values, strict=bool(panel.values)))
    # The time of a query is of no interest, and in half a row it would push the value out of sight.
    hidden = {"Time", "__name__", "alertstate", *columns} - names.keys()
    return made.with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(sorted(hidden), True),
                "renameByName": names,
                "indexByName": {name: place for place, name in enumerate(_FIRST)},
            },
        )
    )


_KINDS: Final = {
    "lines": _lines, "stacked": _stacked, "stat": _stat, "heatmap": _heatmap, "bars": _bars, "table": _table,
}  # fmt: skip
