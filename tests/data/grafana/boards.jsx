// Draws a board's panels with Grafana's own components, for tests/integration/long_board_pictures.py. window.BOARD
// holds the panels, each with Prometheus' answers. Grafana publishes its components, but not the code around them. This
// script stands in for that code: answers become frames, options of panels become options of fields, and panels get
// their places on the grid.
import React from 'react';
import { createRoot } from 'react-dom/client';
import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';
import {
  ThemeContext, createTheme, applyFieldOverrides, toDataFrame, FieldType, Registry, dateTime, getDisplayProcessor,
  transformDataFrame, standardTransformers, standardTransformersRegistry, EventBusSrv,
  cacheFieldDisplayNames,
} from '@grafana/data';
import { TimeSeries, BigValue, PanelChrome, PanelContextProvider, GlobalStyles } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { initPluginTranslations } from '@grafana/i18n';

const board = window.BOARD;
const { from, to, step } = board;
const theme = createTheme({ colors: { mode: board.theme } });
const errors = [];
addEventListener('error', (event) => errors.push(event.message));
addEventListener('unhandledrejection', (event) => errors.push(String(event.reason)));
console.error = (...said) => errors.push(said.map(String).join(' ').slice(0, 500));
const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now-2m', to: 'now' } };
const HEAD = 40, UNIT = 30, GAP = 8;

standardTransformersRegistry.setInit(() =>
  [...new Map(Object.values(standardTransformers).map((one) => [one.id, { ...one, transformation: one }])).values()]);

// What a panel's editor registers in Grafana: the options of a field that are taken over as they are.
const option = (path, isCustom) => ({
  id: (isCustom ? 'custom.' : '') + path, path, name: path, isCustom, process: (value) => value,
  shouldApply: () => true,
});
const LINES = {
  drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', pointSize: 5,
  showPoints: 'never', spanNulls: false, axisPlacement: 'auto', axisLabel: '', axisColorMode: 'text',
  axisBorderShow: false,
  barAlignment: 0, scaleDistribution: { type: 'linear' }, stacking: { group: 'A', mode: 'none' },
  thresholdsStyle: { mode: 'off' }, hideFrom: { tooltip: false, viz: false, legend: false }, axisCenteredZero: false,
  lineStyle: { fill: 'solid' },
};
const OPTIONS = new Registry(() => [
  ...['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings', 'links']
    .map((path) => option(path, false)),
  ...[...Object.keys(LINES), 'align', 'cellOptions', 'width', 'minWidth', 'filterable', 'inspect']
    .map((path) => option(path, true)),
]);

const named = (target, labels) =>
  target.legendFormat && target.legendFormat !== '__auto'
    ? target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '')
    : Object.values(labels).join(' ') || 'Value';

function frames(target) {
  if (target.format === 'table') {
    const names = [...new Set(target.result.flatMap((one) => Object.keys(one.metric)))];
    return [toDataFrame({ refId: target.refId, fields: [
      { name: 'Time', type: FieldType.time, values: target.result.map((one) => one.value[0] * 1000) },
      ...names.map((name) => ({ name, type: FieldType.string,
        values: target.result.map((one) => one.metric[name] ?? '') })),
      { name: 'Value', type: FieldType.number, values: target.result.map((one) => +one.value[1]) },
    ] })];
  }
  return target.result.map((one) => {
    const at = new Map((one.values ?? [one.value]).map(([time, value]) => [Math.round(time * 1000), +value]));
    const first = Math.round(from * 1000);
    const times = one.values ? Array.from({ length: Math.floor((to - from) / step) + 1 },
      (_, i) => first + i * step * 1000)
      : [...at.keys()];
    return toDataFrame({ refId: target.refId, fields: [
      { name: 'Time', type: FieldType.time, values: times },
      { name: 'Value', type: FieldType.number, labels: one.metric,
        config: { displayNameFromDS: named(target, one.metric) },
        values: times.map((time) => at.get(time) ?? null) },
    ] });
  });
}

function configured(panel, data) {
  const { defaults, overrides } = panel.fieldConfig;
  const custom = panel.type === 'timeseries' ? { ...LINES, ...defaults.custom } : defaults.custom ?? {};
  const made = applyFieldOverrides({
    data, theme, timeZone: 'utc', fieldConfigRegistry: OPTIONS, replaceVariables: (text) => text,
    fieldConfig: {
      defaults: {
        color: { mode: panel.type === 'timeseries' ? 'palette-classic' : 'thresholds' }, ...defaults, custom,
      },
      overrides,
    },
  });
  cacheFieldDisplayNames(made);
  return made;
}

function Content({ panel, width, height }) {
  const [data, setData] = React.useState(null);
  React.useEffect(() => {
    const raw = panel.targets.flatMap(frames);
    const sub = transformDataFrame(panel.transformations ?? [], raw, { interpolate: (text) => text })
      .subscribe((made) => setData(configured(panel, made)));
    return () => sub.unsubscribe();
  }, [panel]);
  if (!data) return null;
  if (panel.type === 'table') return <TableNG data={data[0]} width={width} height={height} structureRev={1} />;
  if (panel.type === 'stat') {
    const each = data.map((frame) => frame.fields.find((field) => field.type === FieldType.number));
    return each.map((field, i) => {
      const shown = (field.display ?? getDisplayProcessor({ field, theme }))(field.values[field.values.length - 1]);
      return <BigValue key={i} theme={theme} width={width} height={height / each.length} value={{ ...shown,
        title: field.config.displayNameFromDS }} colorMode={panel.options.colorMode} graphMode="none"
        justifyMode="auto" textMode={panel.options.textMode === 'auto' ? 'value' : panel.options.textMode} />;
    });
  }
  return <PanelContextProvider value={{ eventsScope: 'global', eventBus: new EventBusSrv() }}>
    <TimeSeries frames={data} structureRev={1} timeRange={range} timeZone="utc" width={width} height={height}
      legend={panel.options.legend} options={panel.options} />
  </PanelContextProvider>;
}

function Board() {
  const place = ({ x, y, w, h }) => ({
    position: 'absolute', left: GAP + (x * (board.width - GAP)) / 24, top: y * (UNIT + GAP) + HEAD,
    width: (w * (board.width - GAP)) / 24 - GAP, height: h * (UNIT + GAP) - GAP,
  });
  return <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <div style={{ position: 'relative', width: board.width, height: 5000, background: theme.colors.background.canvas,
      color: theme.colors.text.primary, fontFamily: theme.typography.fontFamily }}>
      <div style={{ position: 'absolute', left: GAP, top: 8, fontSize: 18 }}>{board.title}</div>
      {board.panels.map((panel, i) => {
        const at = place(panel.gridPos);
        if (panel.type === 'row')
          return <div key={i} style={{ ...at, lineHeight: `${at.height}px` }}>▾ {panel.title}</div>;
        return <div key={i} style={at}>
          <PanelChrome title={panel.title} width={at.width} height={at.height}>
            {(width, height) => <div className="panel"><Content panel={panel} width={width} height={height} /></div>}
          </PanelChrome>
        </div>;
      })}
    </div>
  </ThemeContext.Provider>;
}

// Tells the test how many panels show something: as soon as all do, or after fifty looks.
function report(looks = 50) {
  const drawn = [...document.querySelectorAll('.panel')]
    .filter((one) => one.querySelector('canvas') || one.textContent).length;
  if (looks && drawn < board.panels.filter((panel) => panel.type !== 'row').length) {
    setTimeout(report, 100, looks - 1);
    return;
  }
  const said = document.createElement('pre');
  said.id = 'said';
  said.hidden = true;
  said.textContent = JSON.stringify({ drawn, errors });
  document.body.append(said);
}

// A canvas does not wait for letters.
Promise.all([initPluginTranslations('triton-gateway'),
  ...[400, 500].map((weight) => document.fonts.load(`${weight} 14px Inter`))])
  .then(() => {
    createRoot(document.getElementById('root')).render(<Board />);
    report();
  });
