// The page's script: it fetches the content anew, filters and sorts rows, draws curves, tries requests, shows lineage.
const open = new Set(new URLSearchParams(location.search).getAll('open'));
const at = id => document.getElementById(id);
const query = () => [...open].map(name => 'open=' + encodeURIComponent(name)).join('&');
let loading = false, late = false, lost = false, seen = Date.now();

function arrange() {
  const list = at('rows');
  if (!list) return;
  const wanted = at('filter').value.toLowerCase(), by = at('sort').value, rows = [...list.children];
  const place = (a, b) => a.dataset.place - b.dataset.place;
  rows.sort((a, b) => by === 'name' ? a.dataset.name.localeCompare(b.dataset.name)
    : by === 'busy' ? b.dataset.rate - a.dataset.rate || place(a, b) : place(a, b));
  let shown = 0;
  for (const row of rows) {
    const hit = row.dataset.text.includes(wanted);
    row.hidden = !hit;
    shown += hit;
  }
  if (rows.some((row, i) => list.children[i] !== row)) list.append(...rows);
  at('shown').textContent = wanted ? shown + ' of ' + rows.length + ' shown' : '';
}

function tell(text, old) {
  const news = at('news');
  if (news.textContent !== text) news.textContent = text;
  news.className = old ? 'bad' : 'dim';
  document.body.classList.toggle('old', !!old);
}

const clock = seconds => new Date(seconds * 1000).toTimeString().slice(0, 5);

function draw() {
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name).trim();
  for (const place of document.querySelectorAll('.curves')) {
    const told = JSON.parse(place.dataset.curves), now = Date.now() / 1000;
    const grid = {stroke: colour('--line'), width: 1};
    const axis = {stroke: colour('--dim'), font: '10px ui-monospace,monospace', grid, ticks: grid};
    new uPlot({
      width: place.clientWidth || 320, height: 130, legend: {show: false}, cursor: {drag: {x: false, y: false}},
      series: [{}, ...told.lines.map(line => ({stroke: colour(line.colour), width: 1.5, points: {show: false}}))],
      axes: [{...axis, space: 60, size: 30, values: (_, all) => all.map(clock)}, {...axis, size: 52, space: 26, values: (_, all) => all.map(v => v + told.unit)}],
      scales: {y: {range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1]}},
    }, [told.ago.map(ago => now - ago), ...told.lines.map(line => line.values)], place);
  }
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
    const reply = await fetch(location.pathname + '?part=live&' + query(),
      {cache: 'no-store', signal: AbortSignal.timeout(20000)});
    if (!reply.ok) throw Error(reply.status);
    const page = new DOMParser().parseFromString(await reply.text(), 'text/html');
    const row = document.activeElement?.closest?.('details');
    const tables = one => one ? [...one.querySelectorAll('.wide')] : [];
    const nth = tables(row).indexOf(document.activeElement);
    const moved = [...document.querySelectorAll('#rows>details')]
      .map(one => [one.id, tables(one).map(table => table.scrollLeft)]);
    at('live').replaceChildren(...page.getElementById('live').children);
    arrange();
    draw();
    for (const [id, lefts] of moved)
      tables(at(id)).forEach((one, i) => { if (lefts[i]) one.scrollLeft = lefts[i]; });
    if (row) (tables(at(row.id))[nth] || at(row.id)?.firstElementChild)?.focus({preventScroll: true});
    lost = false;
    seen = Date.now();
    tell('');
  } catch {
    lost = true;
    tell('no answer from the gateway since ' + new Date(seen).toLocaleTimeString() + ': these numbers are old', true);
  }
  loading = false;
  if (late) { late = false; load(); }
}

function add(parent, tag, text) {
  const one = document.createElement(tag);
  one.textContent = text;
  parent.append(one);
  return one;
}

function panel(title) {
  const found = at('panel');
  found.hidden = false;
  found.replaceChildren();
  const head = add(found, 'h2', title);
  head.tabIndex = -1;
  head.focus();
  return found;
}

function tryOut(path, example) {
  const found = panel('Try ' + path);
  const label = add(found, 'label', 'Body, as JSON');
  const body = document.createElement('textarea');
  body.rows = 5;
  body.value = example;
  label.append(body);
  const send = add(found, 'button', 'Send');
  const status = add(found, 'p', ''), answer = add(found, 'pre', '');
  add(found, 'p', 'The same from a terminal:').className = 'dim';
  const curl = add(found, 'pre', '');
  const address = new URL(path.slice(1), location.href.split('?')[0]);
  body.oninput = () => {
    curl.textContent = `curl -s '${address}' -H 'content-type: application/json' -d '`
      + body.value.replaceAll("'", "'\\''") + "'";
  };
  body.oninput();
  send.onclick = async () => {
    status.textContent = 'waiting for the answer …';
    const began = performance.now();
    try {
      const reply = await fetch(address, {method: 'POST', body: body.value, headers: {'content-type': 'application/json'}});
      const text = await reply.text(), by = reply.headers.get('x-served-by');
      status.textContent = reply.status + ' after ' + Math.round(performance.now() - began) + ' ms'
        + (by ? ', answered by ' + by : '');
      answer.textContent = text.length > 5000 ? text.slice(0, 5000) + ' …' : text;
    } catch (error) {
      status.textContent = 'no answer: ' + error.message;
    }
  };
}

async function lineage(url) {
  const found = panel('Where ' + url + ' comes from');
  let origin;
  try {
    origin = await (await fetch('v1/endpoints/' + url.split('/').map(encodeURIComponent).join('/') + '/lineage')).json();
  } catch (error) {
    origin = {error: 'no answer: ' + error.message};
  }
  const list = add(found, 'dl', '');
  const say = (name, one) => {
    if (!one) return;
    add(list, 'dt', name);
    const line = add(list, 'dd', [one.name, one.version, one.project, one.id].filter(Boolean).join(' · '));
    if (/^https?:/.test(one.link || '')) { const link = add(line, 'a', ' open'); link.href = one.link; }
  };
  say('Model', origin.model);
  say('Trained by Task', origin.task);
  for (const one of origin.datasets || []) say('Data set', one);
  for (const one of origin.parents || []) say('Made from', one);
  for (const note of origin.notes || [origin.error].filter(Boolean)) add(found, 'p', note).className = 'dim';
}

addEventListener('DOMContentLoaded', () => {
  at('filter').oninput = at('sort').onchange = arrange;
  arrange();
  draw();
  document.addEventListener('toggle', event => {
    const row = event.target, name = row.dataset?.name;
    if (name === undefined || row.open === open.has(name)) return;
    row.open ? open.add(name) : open.delete(name);
    history.replaceState(null, '', open.size ? '?' + query() : location.pathname);
    if (row.open) load();
  }, true);
  document.addEventListener('click', event => {
    const asked = event.target.dataset || {};
    if (asked.example !== undefined) tryOut(asked.path, asked.example);
    if (asked.lineage !== undefined) lineage(asked.lineage);
  });
  setInterval(load, 3000);
});
