// The status page: one row per endpoint, the worst first; an open row shows its versions, routes, curves and drift.
//
// It asks for /v1/status every few seconds and draws it anew, unless a part of it is selected. Whatever comes from there
// is set as text, so no name and no error can be markup. Only open rows are drawn whole, so hundreds of endpoints are
// drawn quickly. The address lists the open rows (?open=NAME).

const open = new Set(new URLSearchParams(location.search).getAll('open'));
const at = id => document.getElementById(id);
const query = () => [...open].map(name => 'open=' + encodeURIComponent(name)).join('&');

// State, or what is at fault: the section of docs/on-call.md that says what to do.
const RUNBOOK = {
  'not served': 'gatewaymodelstuckloading',
  'degraded': 'gatewaymodelstuckloading',
  'old version': 'gatewaymodelstuckloading',
  'failing': 'gatewayerrorbudgetburn',
  'unguarded': 'gatewaycanaryunguarded',
  'drift': 'gatewaydrift',
  'registry': 'gatewayconfigurationstale',
  'faults': 'gatewayconfigurationfault',
  'triton': 'gatewaybackenddown',
  'not ready': 'when-a-gateway-is-ready',
};
const CLASSES = ['ok', 'wait', 'bad'], GOOD = 0, LOOK = 1, BAD = 2;
const FAILED = [0.001, 0.01];  // shares of failed requests from which a row is a warning, and bad
const WORST = ['not served', 'failing'];  // callers get errors: before an old version that still answers
const CHANGED = ['drift', 'moved'];  // variables in these states come first
const CHARTS = [  // title, unit, factor, curves
  ['Requests per second', '', 1, ['rate']],
  ['Time of answers', ' ms', 1000, ['p50', 'p95', 'p99']],
  ['Mean time of the stages', ' ms', 1000, ['prepare', 'queue', 'infer', 'finish']],
];
const COLOURS = ['--blue', '--orange', '--green', '--violet'];
const SVG = new Set(['svg', 'g', 'rect', 'text', 'title']);

// An element; attributes that are functions are handlers, and false, null or '' among the content is nothing.
function h(tag, attributes, ...content) {
  const one = SVG.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === 'function') one[name] = value;
    else if (value !== false) one.setAttribute(name, value);
  }
  one.append(...content.flat(Infinity).filter(part => part || part === 0));
  return one;
}
const marked = (kind, text) => h('span', {class: kind}, text);
const code = text => h('code', null, text);

// --- numbers as people write them -------------------------------------------------------------------------------------

const whole = value => value.toLocaleString('en-US', {maximumFractionDigits: 0});
const number = value => value > 0 && value < 1 ? value.toFixed(2) : value > 0 && value < 100 ? value.toFixed(1) : whole(value);
const rate = value => number(value) + '/s';
const percent = (value, digits) => (100 * value).toFixed(digits) + '%';
const share = value => value > 0 && value < 0.0001 ? 'under 0.01%' : percent(value, 2);  // above zero it is never 0
const time = seconds => seconds === null ? '–' : seconds < 0.9995 ? number(seconds * 1000) + ' ms' : number(seconds) + ' s';
const moment = unix => new Date(unix * 1000).toISOString().slice(0, 19).replace('T', ' ');  // UTC
const graded = failed => CLASSES[FAILED.filter(limit => failed >= limit).length];
const sum = values => values.reduce((total, value) => total + value, 0);
const mean = (routes, field) => sum(routes.map(one => one[field] * one.rate)) / (sum(routes.map(one => one.rate)) || 1);

// --- what is known of each endpoint -----------------------------------------------------------------------------------

function rowsOf(status) {
  const found = new Map();
  const row = name => {
    if (!found.has(name)) found.set(name, {
      name, served: [], pending: [], routes: [], drifts: [], beside: [], accuracies: [], curves: [], shares: {},
    });
    return found.get(name);
  };
  const known = listed => (listed || []).filter(one => found.has(one.endpoint));
  for (const one of status.endpoints) row(one.endpoint).served.push(one);
  for (const one of status.pending) {
    const end = found.has(one.url) ? -1 : one.url.lastIndexOf('/');
    row(end < 0 ? one.url : one.url.slice(0, end)).pending.push(one);
  }
  for (const one of status.last_minute) row(one.endpoint).routes.push(one);
  for (const one of status.drift) row(one.endpoint).drifts.push(one);
  for (const [name, shares] of Object.entries(status.canaries)) row(name).shares = shares;
  for (const [name, url] of Object.entries(status.defaults || {})) row(name).default = url;
  for (const one of known(status.accuracy)) row(one.endpoint).accuracies.push(one);
  for (const one of known(status.rollouts)) row(one.endpoint).rollout = one;
  for (const one of known(status.compared)) {
    // Without a share of the requests a canary is no canary any more: its rollout is over.
    if ((row(one.endpoint).shares[one.endpoint + '/' + one.beside] ?? 1) > 0) row(one.endpoint).beside.push(one);
  }
  for (const [name, curves] of Object.entries(status.curves)) if (found.has(name)) row(name).curves = curves;
  for (const one of found.values()) {
    one.rate = sum(one.routes.filter(each => each.route !== 'fallback').map(each => each.rate));
    one.failed = mean(one.routes, 'failed');
    [one.level, one.state, one.why] = stateOf(one);
  }
  // By state, then by name: a row keeps its place while its state stays.
  const place = one => [-one.level, !WORST.includes(one.state)];
  return [...found.values()].sort((a, b) => {
    const [left, right] = [place(a), place(b)];
    return left[0] - right[0] || left[1] - right[1] || (a.name < b.name ? -1 : 1);
  });
}

// How many requests fail, and with which outcomes most of them do.
function failing(row) {
  const found = new Map();
  for (const one of row.routes)
    for (const [outcome, part] of Object.entries(one.failures)) found.set(outcome, (found.get(outcome) || 0) + part * one.rate);
  const causes = [...found].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 2).map(([outcome]) => outcome);
  return share(row.failed) + ' of requests fail' + (causes.length ? ': ' + causes.join(', ') : '');
}

// The level, the state as a word, and the reason.
function stateOf(row) {
  const broken = row.pending.filter(one => one.state !== 'pending');
  const stuck = row.served.find(one => one.successor && one.successor.state !== 'pending');
  const why = broken.slice(0, 1).map(one => one.url + ': ' + one.reason);
  const fails = row.failed >= FAILED[1] ? [failing(row)] : [];
  if (broken.length && !row.served.length) return [BAD, 'not served', [...why, ...fails].join('; ')];
  if (fails.length) return [BAD, 'failing', [...fails, ...why].join('; ')];
  if (broken.length) return [BAD, 'degraded', why[0]];
  if (stuck) return [BAD, 'old version', stuck.url + ': the new version ' + stuck.successor.reason];
  if (row.rollout?.phase === 'running' && !row.rollout.guard)
    return [LOOK, 'unguarded', 'nobody looks after the canary ' + row.rollout.canary + ': no controller runs'];
  const drifted = new Set(row.drifts.filter(one => one.state === 'drift').map(one => one.variable));
  if (drifted.size) return [LOOK, 'drift', [...drifted].join(', ') + ' drifted'];
  if (row.failed >= FAILED[0]) return [LOOK, 'failing', failing(row)];
  const uneven = row.beside.find(one => one.sentences.texts);
  if (uneven) return [LOOK, 'uneven split', brief(uneven, uneven.sentences.texts)];
  const building = [...row.pending, ...row.served.filter(one => one.successor).map(one => ({...one.successor, url: one.url}))];
  if (building.length) return [LOOK, 'building', building[0].url + ': ' + building[0].reason];
  return [GOOD, 'serving', row.beside.flatMap(one => Object.values(one.sentences).map(how => brief(one, how))).join('; ')];
}

// The first part of a difference; the open row has all of it.
const brief = (one, how) => 'version ' + one.version + ': ' + how.split('): ')[0] + (how.includes('): ') ? ')' : '');

// --- the content ------------------------------------------------------------------------------------------------------

const whatToDo = fault => fault in RUNBOOK && marked('dim', ' → docs/on-call.md#' + RUNBOOK[fault]);
const pool = name => name && name !== 'default' && marked('dim', ' pool ' + name);

function head(status) {
  const task = status.serving_task, named = new Map((status.pools || []).map(one => [one.address, one.pool]));
  const tritons = Object.entries(status.triton);
  return [
    h('p', null,
      !status.ready ? [marked('bad', 'not ready'), ': ' + status.not_ready_because.join('; '), whatToDo('not ready')]
        : status.degraded.length ? marked('wait', 'ready, degraded') : marked('ok', 'ready'),
      task && [' · serving Task ' + task.name + ' ', code(task.id)],
      ' · revision ', code(status.revision || '–'),
      tritons.map(([address, up], i) => [
        i ? ', ' : ' · Triton ', code(address), pool(named.get(address)), ' ',
        up ? marked('ok', 'answers') : marked('bad', 'does not answer'),
      ]),
      tritons.some(([, up]) => !up) && whatToDo('triton')),
    status.registry.error && h('p', {class: 'bad'}, 'registry: ' + status.registry.error, whatToDo('registry')),
  ];
}

function tiles(status, rows) {
  const routes = rows.flatMap(row => row.routes), asked = rows.some(row => row.rate);
  const failed = mean(routes, 'failed'), bad = rows.filter(row => row.level === BAD).length;
  const drifted = rows.filter(row => row.drifts.some(one => one.state === 'drift')).length;
  return h('dl', {class: 'tiles'}, [
    ['Endpoints', rows.length], ['Endpoints with a fault', bad, bad && 'bad'], ['Versions served', status.endpoints.length],
    ['Requests', rate(sum(rows.map(row => row.rate)))], ['Failed', asked ? share(failed) : '–', asked && graded(failed)],
    ['Refused (caller errors)', asked ? share(mean(routes, 'refused')) : '–'],
    ['Endpoints with drift', drifted, drifted && 'wait'],
  ].map(([name, value, kind]) => h('div', null, h('dt', null, name), h('dd', {class: kind || ''}, value))));
}

function faults(status) {
  const listed = [
    ...status.faults.map(one => [code(one.subject), ' ' + one.message]),
    ...(status.lost || []).map(one => [
      code(one.endpoint), ' was lost by a stale write of another ClearML client; if it was not removed on purpose: ',
      code(one.restore),
    ]),
  ];
  return listed.length > 0 && [
    h('h2', null, 'Configuration faults', whatToDo('faults')),
    h('ul', null, listed.map(one => h('li', {class: 'bad'}, one))),
  ];
}

function endpoints(rows) {
  if (!rows.length) return [
    h('p', null, 'Nothing is deployed yet.'),
    h('p', null, 'To serve a model: ', code('triton-gateway deploy ./my-model')),
  ];
  const wanted = at('filter').value.toLowerCase(), by = at('sort').value;
  const shown = rows.filter(row => [row.name, row.state, row.why, ...row.served.map(one => one.model_name)]
    .join(' ').toLowerCase().includes(wanted));
  if (by === 'name') shown.sort((a, b) => a.name.localeCompare(b.name));
  if (by === 'busy') shown.sort((a, b) => b.rate - a.rate);
  at('shown').textContent = wanted ? shown.length + ' of ' + rows.length + ' shown' : '';
  return [h('h2', null, 'Endpoints, last minute'), h('div', {id: 'rows'}, shown.map(rowOf))];
}

function rowOf(row) {
  const slowest = row.routes.map(one => one.p95).filter(one => one !== null);
  const number = (value, name, kind) => h('span', {class: 'n ' + (kind || '')}, value, h('small', null, name));
  return h('details', {
    id: 'row-' + encodeURIComponent(row.name), open: open.has(row.name) && '',
    ontoggle: event => {
      if (event.target.open === open.has(row.name)) return;
      event.target.open ? open.add(row.name) : open.delete(row.name);
      history.replaceState(null, '', open.size ? '?' + query() : location.pathname);
      load();
    },
  },
  h('summary', null,
    marked(CLASSES[row.level], row.state), h('b', null, row.name || '(unknown path)'), h('span', {class: 'n'}, rate(row.rate)),
    row.rate ? number(share(row.failed), 'failed', graded(row.failed)) : number('–', 'failed', 'dim'),
    number(time(slowest.length ? Math.max(...slowest) : null), 'p95'), marked('note dim', row.why)),
  h('div', {class: 'inside'}, open.has(row.name) && inside(row)));
}

const inside = row => [
  row.state in RUNBOOK && h('p', null, 'What to do', whatToDo(row.state)),
  row.default && h('p', null, 'Default ', code('POST ' + prefix() + row.name), ': ', code(row.default)),
  Object.keys(row.shares).length > 0 && h('p', null, 'Canary ', code('POST ' + prefix() + row.name), ': ',
    Object.entries(row.shares).map(([url, part], i) => [(i ? ', ' : '') + percent(part, 1) + ' ', code(url)])),
  versions(row), row.rollout && rollout(row.rollout), requests(row), charts(row),
  row.accuracies.length > 0 && h('h3', null, 'Accuracy'),
  row.accuracies.map(one => h('p', null, 'Version ' + (one.version || '–') + ': ' + percent(one.value, 1)
    + ' right by labels (' + percent(one.low, 1) + ' to ' + percent(one.high, 1) + ', ' + whole(one.labels) + ' labels)')),
  row.beside.map(one => [
    h('h3', null, 'Version ' + one.version + ' compared with ' + one.beside),
    Object.values(one.sentences).map(how => h('p', {class: 'wait'}, how)),
    !Object.keys(one.sentences).length && h('p', {class: 'dim'}, 'No difference so far.'),
  ]),
  drifts(row.drifts),
];

const prefix = () => document.body.dataset.prefix;  // of the inference routes

// What is too wide scrolls sideways, by keyboard too; with the class drifts it wraps, except on a phone.
const scrolling = (label, content, more) =>
  h('div', {class: 'wide ' + (more || ''), role: 'group', 'aria-label': label, tabindex: 0}, content);

// A table; each cell is a content, or [content, class].
const table = (label, heads, lines) => lines.length > 0 && scrolling(label, h('table', null,
  h('tr', null, heads.map(head => h('th', {scope: 'col', class: head[1] || ''}, head[0]))),
  lines.map(line => h('tr', null, line.map(cell => Array.isArray(cell) ? h('td', {class: cell[1]}, cell[0]) : h('td', null, cell))))));

function versions(row) {
  const served = row.served.map(one => {
    const url = one.url, body = JSON.stringify(one.details.example || {text: 'Hello there'}), next = one.successor;
    return [code('POST ' + prefix() + url), ['serving', 'ok'], one.details.task,
      h('span', null, one.model_name + ' ', marked('dim', one.model_id), pool(one.pool)),
      h('span', null,
        next && marked(next.state === 'pending' ? 'wait' : 'bad', 'new version ' + next.state + ': ' + next.reason), ' ',
        h('button', {type: 'button', onclick: () => tryOut(prefix() + url, body)}, 'try'), ' ',
        h('button', {type: 'button', 'aria-label': 'Where ' + url + ' comes from', onclick: () => lineage(url)}, 'lineage'))];
  });
  const pending = row.pending.map(one => one.state === 'pending'
    ? [code(one.url), [one.phase, 'wait'], '', '', one.reason] : [code(one.url), [one.state, 'bad'], '', '', one.reason]);
  return table('Versions', [['Path'], ['State'], ['Task'], ['Model'], ['Note']], [...served, ...pending]);
}

const requests = row => table('Requests',
  [['Version'], ['Route'], ...['Requests', 'Share', 'Failed', 'Refused', 'p50', 'p95', 'p99', 'Rows per call'].map(name => [name, 'n'])],
  row.routes.map(one => [
    one.version || '–', [one.route, 'dim'], [rate(one.rate), 'n'], [percent(one.share, 0), 'n'],
    [share(one.failed), 'n ' + graded(one.failed)], [share(one.refused), 'n dim'],
    ...[one.p50, one.p95, one.p99].map(seconds => [time(seconds), 'n']),
    [one.rows_per_call === null ? '–' : one.rows_per_call.toFixed(1), 'n'],
  ]));

// Where a rollout is, who guards it, the way back, and its last decisions with their reasons.
const rollout = one => [
  h('h3', null, 'Rollout of ', code(one.canary), ' beside ', code(one.stable)),
  h('p', null, one.phase.replace('_', ' ') + ', ' + one.weight + ' % of steps ' + one.steps.map(step => step + ' %').join(', '),
    one.phase === 'running' && [', ' + one.state + '; ', one.guard ? 'guarded by ' + one.guard
      : h('span', {class: 'bad'}, 'nobody guards it: start ', code('triton-gateway controller'))]),
  h('p', null, one.why),
  one.way_back && h('p', {class: 'dim'}, 'The way back: ', code(one.way_back)),
  table('Decisions, UTC', [['At'], ['Decision'], ['Weight', 'n'], ['Why']], [...one.decisions].reverse().map(said =>
    [[moment(said.at).slice(5), 'dim'], said.what, [said.weight + ' %', 'n'], said.why])),
];

// --- curves and histograms --------------------------------------------------------------------------------------------

const mark = colour => h('svg', {width: 10, height: 10, 'aria-hidden': 'true'},
  h('rect', {width: 10, height: 10, rx: 2, fill: `var(${colour})`}));

function charts(row) {
  const drawn = row.curves.filter(of => of.ago.length > 1);
  return drawn.length > 0 && [
    h('h3', null, 'Last hour, this gateway'),
    h('div', {class: 'charts'}, drawn.flatMap(of => CHARTS.map(chart => figure(of, ...chart)))),
  ];
}

function figure(of, title, unit, factor, names) {
  const lines = names.map(name => of[name].map(value => value === null ? null : +(value * factor).toFixed(3)));
  const newest = lines.map((line, i) => names[i] + ' ' + (line.findLast(value => value !== null) ?? '–') + unit).join(', ');
  const label = title + (of.version && ', version ' + of.version);
  const place = h('div', {class: 'curves', role: 'img', 'aria-label': label + '; now ' + newest});
  place.draw = () => plot(place, of.ago, lines, unit);
  return h('figure', null, h('figcaption', null, label, names.length > 1
    && h('span', {class: 'key dim'}, names.map((name, i) => h('span', null, mark(COLOURS[i]), name)))), place);
}

const clock = seconds => new Date(seconds * 1000).toTimeString().slice(0, 5);

// Only once it is in the document, as it needs its width.
function plot(place, ago, lines, unit) {
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  const now = Date.now() / 1000, grid = {stroke: colour('--line'), width: 1};
  const axis = {stroke: colour('--dim'), font: '10px ui-monospace,monospace', grid, ticks: grid};
  new uPlot({
    width: place.clientWidth || 320, height: 130, legend: {show: false}, cursor: {drag: {x: false, y: false}},
    series: [{}, ...lines.map((_, i) => ({stroke: colour(COLOURS[i]), width: 1.5, points: {show: false}}))],
    axes: [{...axis, space: 60, size: 30, values: (_, all) => all.map(clock)},
      {...axis, size: 52, space: 26, values: (_, all) => all.map(value => value + unit)}],
    scales: {y: {range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1]}},
  }, [ago.map(seconds => now - seconds), ...lines], place);
}

// A histogram of each variable, now over the reference, by version; those that changed come first.
function drifts(found) {
  const versions = [...new Set(found.map(one => one.version))], last = one => !CHANGED.includes(one.state);
  return versions.length > 0 && [
    versions.map(version => [
      h('h3', null, 'Drift of version ' + (version || '–')),
      scrolling('Variables of version ' + (version || '–'),
        found.filter(one => one.version === version).sort((a, b) => last(a) - last(b)).map(histogram), 'drifts'),
    ]),
    h('p', {class: 'key dim'}, mark('--blue'), 'now',
      h('svg', {width: 10, height: 10, 'aria-hidden': 'true'},
        h('rect', {x: 1, y: 1, width: 8, height: 8, fill: 'none', stroke: 'var(--ref)', 'stroke-width': 1.5})), 'reference'),
  ];
}

function histogram(one) {
  const now = one.counts.map(count => one.n ? count / one.n : 0), wide = 272 / one.bins.length;
  const scale = 62 / Math.max(...now, ...one.reference, 0.001);
  const bar = (i, part, inset, look) => h('rect', {
    x: i * wide + inset, y: 66 - part * scale, width: Math.max(wide - 2 * inset, 1), height: part * scale, ...look,
  });
  return h('div', {class: 'drift'},
    h('p', null, code(one.variable), ' ', marked({drift: 'bad', moved: 'wait', steady: 'ok'}[one.state] || 'dim',
      one.state + (one.state === 'moved' ? ', no alarm' : ''))),
    h('svg', {width: 272, height: 80, viewBox: '0 0 272 80', role: 'img', 'aria-label': one.variable + ': now, and in the reference'},
      one.bins.map((name, i) => h('g', null,
        h('title', null, name + ': ' + percent(now[i], 1) + ' now, ' + percent(one.reference[i], 1) + ' in the reference'),
        bar(i, now[i], 2, {fill: 'var(--blue)', opacity: 0.8}),
        bar(i, one.reference[i], 1, {fill: 'none', stroke: 'var(--ref)', 'stroke-width': 1.5}),
        h('text', {x: (i + 0.5) * wide, y: 78, 'text-anchor': 'middle'}, short(name, wide))))),
    h('p', {class: 'dim'}, evidence(one)), h('p', {class: 'dim'}, 'last hour: n ' + whole(one.n)));
}

// A bin's name in so many pixels.
function short(name, wide) {
  const text = name === '+Inf' ? '∞' : name.trim() && isFinite(name) ? String(+(+name).toPrecision(2)) : name;
  return text.length * 6 <= wide ? text : wide > 18 ? text.slice(0, Math.floor(wide / 6) - 1) + '…' : '';
}

// The evidence, the alarm threshold, and the smallest visible change.
function evidence(one) {
  const days = one.days < 1 ? 'less than a day' : one.days < 10000 ? whole(one.days) + ' days' : 'more than 10,000 days';
  return 'chance alone: at most once in ' + days + ' (alarm from ' + one.alarm_days + ' on, endpoint)'
    + (CHANGED.includes(one.state) ? ' · since ' + moment(one.since).slice(0, 16) + ' UTC' : '')
    + ' · smallest visible change within a day: ' + percent(one.visible, 1);
}

// --- fetching and drawing anew ----------------------------------------------------------------------------------------

let status = null, loading = false, late = false, lost = false, seen = Date.now();

function tell(text, old) {
  const news = at('news');
  if (news.textContent !== text) news.textContent = text;
  news.className = old ? 'bad' : 'dim';
  document.body.classList.toggle('old', !!old);
}

// Draw the status; what was scrolled and what has the focus stays so.
function draw() {
  if (status === null) return;
  const row = document.activeElement?.closest?.('details');
  const parts = one => one ? [...one.querySelectorAll('.wide')] : [];
  const nth = parts(row).indexOf(document.activeElement);
  const moved = [...document.querySelectorAll('#rows>details')].map(one => [one.id, parts(one).map(part => part.scrollLeft)]);
  const rows = rowsOf(status);
  at('live').replaceChildren(h('div', null, head(status), rows.length > 0 && tiles(status, rows), faults(status), endpoints(rows)));
  for (const place of document.querySelectorAll('.curves')) place.draw();
  for (const [id, lefts] of moved) parts(at(id)).forEach((one, i) => { if (lefts[i]) one.scrollLeft = lefts[i]; });
  if (row) (parts(at(row.id))[nth] || at(row.id)?.firstElementChild)?.focus({preventScroll: true});
}

async function load() {
  if (loading) { late = true; return; }
  const chosen = getSelection();
  if (chosen && !chosen.isCollapsed && at('live').contains(chosen.anchorNode)) {
    if (!lost) tell('held while text is selected');
    return;
  }
  loading = true;
  try {
    const reply = await fetch('v1/status?' + query(), {cache: 'no-store', signal: AbortSignal.timeout(20000)});
    if (!reply.ok) throw Error(reply.status);
    status = await reply.json();
    draw();
    lost = false;
    seen = Date.now();
    tell('');
  } catch (error) {
    console.error(error);
    lost = true;
    tell('no answer from the gateway since ' + new Date(seen).toLocaleTimeString() + ': these numbers are old', true);
  }
  loading = false;
  if (late) { late = false; load(); }
}

// --- a request on trial, and lineage ----------------------------------------------------------------------------------

function panel(title) {
  const found = at('panel'), top = h('h2', {tabindex: -1}, title);
  found.hidden = false;
  found.replaceChildren(top);
  top.focus();
  return found;
}

function tryOut(path, example) {
  const address = new URL(path.slice(1), location.href.split('?')[0]);
  const body = h('textarea', {rows: 5}), told = h('p'), answer = h('pre'), curl = h('pre');
  const send = h('button', {onclick: async () => {
    told.textContent = 'waiting for the answer …';
    const began = performance.now();
    try {
      const reply = await fetch(address, {method: 'POST', body: body.value, headers: {'content-type': 'application/json'}});
      const text = await reply.text(), by = reply.headers.get('x-served-by');
      told.textContent = reply.status + ' after ' + Math.round(performance.now() - began) + ' ms' + (by ? ', answered by ' + by : '');
      answer.textContent = text.length > 5000 ? text.slice(0, 5000) + ' …' : text;
    } catch (error) {
      told.textContent = 'no answer: ' + error.message;
    }
  }}, 'Send');
  body.value = example;
  body.oninput = () => {
    curl.textContent = `curl -s '${address}' -H 'content-type: application/json' -d '` + body.value.replaceAll("'", "'\\''") + "'";
  };
  body.oninput();
  panel('Try ' + path).append(h('label', null, 'Body, as JSON', body), send, told, answer,
    h('p', {class: 'dim'}, 'The same from a terminal:'), curl);
}

async function lineage(url) {
  const found = panel('Where ' + url + ' comes from');
  let origin;
  try {
    origin = await (await fetch('v1/endpoints/' + url.split('/').map(encodeURIComponent).join('/') + '/lineage')).json();
  } catch (error) {
    origin = {error: 'no answer: ' + error.message};
  }
  const say = (name, one) => one && [h('dt', null, name), h('dd', null,
    [one.name, one.version, one.id].filter(Boolean).join(' · '),
    /^https?:/.test(one.link || '') && h('a', {href: one.link}, ' open'))];
  found.append(h('dl', null, say('Model', origin.model), say('Trained by Task', origin.task),
    (origin.datasets || []).map(one => say('Data set', one)), say('Made from', origin.parent)),
  ...(origin.notes || [origin.error].filter(Boolean)).map(note => h('p', {class: 'dim'}, note)));
}

addEventListener('DOMContentLoaded', () => {
  at('filter').oninput = at('sort').onchange = draw;
  load();
  setInterval(load, 3000);
});
