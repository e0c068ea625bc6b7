'use strict';
/* page.js -- the model of a run, what comes from the server, and the frame around the panels.
 *
 * The data is in the page itself (a report in one file), or comes as server-sent events: a snapshot,
 * then changes. A reader that was cut off gets a snapshot again. */

const page = {
  view: new View(), clockView: new View(),
  smooth: 0.6, log: false, byTime: false,
  file: document.getElementById('data') !== null,

  /* x of a series as the axis has it: steps, or seconds since the run began. */
  axisOf(model, s) {
    if (!page.byTime || s.timed) return s.x;
    return s.x.map((x) => model.timeOf(x));
  },
  xText(v, full) {
    if (page.byTime) return full ? 'after ' + format.duration(v) : format.duration(v);
    return full ? 'step ' + format.whole(v) : v >= 1e4 ? format.short(v) : format.whole(v);
  },
};

/* --- the model --- */

const COLUMNS = ['x', 'm', 'l', 'lo', 'hi', 'n', 't'];

/* Every point as if it could stand for several. */
function widen(s) {
  if (s.l) return;
  s.l = s.x.slice();
  s.lo = s.m.slice();
  s.hi = s.m.slice();
  s.n = s.x.map(() => 1);
}

/* Two points become one; smallest and largest stay. */
function halve(s) {
  widen(s);
  const out = {};
  for (const c of COLUMNS) if (s[c]) out[c] = [];
  for (let i = 0; i < s.x.length; i += 2) {
    const k = Math.min(i + 1, s.x.length - 1), one = k === i || s.m[k] === null, other = s.m[i] === null;
    out.x.push(s.x[i]);
    out.l.push(s.l[k]);
    if (s.t) out.t.push(s.t[k]);
    out.n.push(k === i ? s.n[i] : s.n[i] + s.n[k]);
    out.m.push(one ? s.m[i] : other ? s.m[k] : (s.m[i] * s.n[i] + s.m[k] * s.n[k]) / (s.n[i] + s.n[k]));
    out.lo.push(one ? s.lo[i] : other ? s.lo[k] : Math.min(s.lo[i], s.lo[k]));
    out.hi.push(one ? s.hi[i] : other ? s.hi[k] : Math.max(s.hi[i], s.hi[k]));
  }
  Object.assign(s, out);
}

class Model {
  constructor(data) {
    this.series = data.series || {};
    this.perRank = data.ranks || {};
    this.run = data.run || { state: 'starting' };
    this.folder = data.folder || '';
    this.version = data.version;
    this.all = new Map();
    this.others = data.others || [];
    if (data.with) {
      this.with = new Model({ series: data.with.series, run: data.with.run });
      this.with.name = data.with.name;
      this.with.begin = data.with.start;
    }
    this.skew = data.now - Date.now() / 1000;
    this.takeEvents(data.events || []);
  }

  takeEvents(list) {
    for (const e of list) this.all.set(e.id, e);
    this.sorted = [...this.all.values()].sort((a, b) => a.id - b.id);
    this.byKind = {};
    for (const e of this.sorted) (this.byKind[e.e.event] = this.byKind[e.e.event] || []).push(e);
  }

  /* What is new; curves that grow too long are made coarser, all alike. */
  change(data) {
    this.run = data.run;
    this.skew = data.now - Date.now() / 1000;
    if (data.events.length) this.takeEvents(data.events);
    Object.assign(this.perRank, data.ranks);
    for (const [name, add] of Object.entries(data.series)) {
      const s = this.series[name];
      if (!s) { this.series[name] = add; continue; }
      if (s.l || add.l) { widen(s); widen(add); }
      for (const c of COLUMNS) if (s[c] && add[c]) s[c].push(...add[c]);
      if (s.x.length > 2400) halve(s);
    }
  }

  events(kind) { return this.byKind[kind] || []; }
  last(kind) { const l = this.events(kind); return l.length ? l[l.length - 1].e : null; }
  get start() { return this.begin || this.last('start'); }
  /* Of the newest process only. */
  get summary() {
    const s = this.events('summary'), start = this.events('start');
    return s.length && (!start.length || s[s.length - 1].id > start[start.length - 1].id) ? s[s.length - 1].e : null;
  }
  peak() {
    const s = this.events('summary').map((e) => e.e).filter((e) => e.peak_flops > 0);
    return s.length ? s[s.length - 1].peak_flops : 0;
  }
  flopsFromSummary() {
    const s = this.last('summary');
    return s && s.mfu > 0 && s.tokens_per_s > 0 ? s.mfu * s.peak_flops / s.tokens_per_s : 0;
  }
  now() { return page.file ? this.run.updated : Date.now() / 1000 + this.skew; }

  /* The ranks of now: those named since the last time that rank 0 was. */
  ranks() {
    const list = this.events('rank').map((e) => e.e), out = new Map();
    for (const r of list) {
      if (r.rank === 0) out.clear();
      out.set(r.rank, r);
    }
    return [...out.values()].sort((a, b) => a.rank - b.rank);
  }

  /* Seconds from the beginning to a step, between the times that are known. */
  timeOf(step) {
    const s = this.series.loss;
    if (!s || !s.t || !s.t.length) return step;
    const ends = s.l || s.x, i = nearest(ends, step), began = this.run.began || s.t[0];
    const k = ends[i] <= step ? Math.min(i + 1, ends.length - 1) : Math.max(i - 1, 0);
    const part = ends[k] === ends[i] ? 0 : (step - ends[i]) / (ends[k] - ends[i]);
    return Math.max(0, s.t[i] + part * (s.t[k] - s.t[i]) - began);
  }
  /* Whether it went on over midnight. */
  days() { return format.clock(this.run.began).slice(0, 10) !== format.clock(this.run.updated).slice(0, 10); }
  hasTimes() { const s = this.series.loss; return Boolean(s && s.t && s.t.length && s.t[0] > 0); }

  /* From when to when each process trained. */
  attempts() {
    const spans = this.events('start').map((e) => ({ id: e.id, from: e.e.time || this.run.began, to: 0 }));
    const times = [...this.sorted.map((e) => e.e.time || 0), ...((this.series.loss || {}).t || [])].sort((a, b) => a - b);
    spans.forEach((s, i) => {
      const end = i + 1 < spans.length ? spans[i + 1].from : Infinity;
      s.to = s.from;
      for (const t of times) if (t > s.to && t < end - 1e-3) s.to = t;
      if (end === Infinity && this.run.state === 'running') s.to = Math.max(s.to, this.run.updated || 0);
    });
    return spans;
  }

  /* What failures have cost, of the time since the beginning. */
  cost() {
    const spans = this.attempts(), incidents = this.events('incident').map((e) => e.e);
    if (!spans.length || !(this.run.updated > this.run.began)) return { share: null };
    let lost = 0;
    for (let i = 1; i < spans.length; i++) lost += Math.max(0, spans[i].from - spans[i - 1].to);
    const s = this.series.step_ms, ms = s && s.m.length ? s.m.reduce((a, v) => a + (v || 0), 0) / s.m.length : 0;
    for (const e of incidents) lost += (e.seconds || 0) + (e.redone || 0) * ms / 1e3;
    return { share: Math.max(0, 1 - lost / (this.run.updated - this.run.began)), lost };
  }

  /* Seconds to go: with the speed of the last bins, and from the faster to the slower fifth of them. */
  timeLeft() {
    const s = this.series.loss, left = this.run.total_steps - this.run.steps;
    if (!s || !s.t || !(this.run.total_steps > 0) || left <= 0 || this.run.state !== 'running') return null;
    const ends = s.l || s.x, rates = [], n = ends.length, stride = Math.max(1, Math.floor(n / 60));
    for (let i = Math.max(stride, Math.floor(n / 2)); i < n; i += stride)
      if (s.t[i] > s.t[i - stride]) rates.push((s.t[i] - s.t[i - stride]) / (ends[i] - ends[i - stride]));
    const step = this.series.step_ms;
    if (rates.length < 3 && step) for (const v of step.m.slice(-20)) if (v !== null) rates.push(v / 1e3);
    if (rates.length < 2) return null;
    rates.sort((a, b) => a - b);
    const at = (q) => rates[Math.min(rates.length - 1, Math.floor(q * rates.length))] * left;
    return { middle: at(0.5), low: at(0.2), high: at(0.8) };
  }
}

/* --- the head --- */

const $ = (id) => document.getElementById(id);

function fact(label, value, small, title) {
  const dd = el('dd', {}, value);
  if (small) dd.append(' ', el('small', { textContent: small }));
  return el('div', { title: title || '' }, el('dt', { textContent: label }), dd);
}

function showHead(m) {
  const r = m.run, name = r.name || m.folder.split('/').pop() || 'lineshaft', left = m.timeLeft();
  document.title = (r.state === 'running' && r.total_steps ? Math.floor(100 * r.steps / r.total_steps) + ' % ' : '') + name + ' \u00b7 lineshaft';
  $('name').textContent = name;
  $('state').textContent = r.state;
  $('state').className = 'pill ' + (['running', 'finished', 'failed', 'lost', 'stopped'].includes(r.state) ? r.state : '');
  $('folder').textContent = m.folder;
  $('folder').title = m.folder;
  $('progress').firstElementChild.style.width = r.total_steps ? 100 * Math.min(1, r.steps / r.total_steps) + '%' : '0';
  const facts = [];
  if (r.steps !== undefined) facts.push(fact('step', format.whole(r.steps), r.total_steps ? '/ ' + format.whole(r.total_steps) : ''));
  if (r.tokens) facts.push(fact('tokens', format.short(r.tokens)));
  if (r.loss !== null && r.loss !== undefined) facts.push(fact('loss', format.number(r.loss)));
  if (r.val_loss !== null && r.val_loss !== undefined) facts.push(fact('validation', format.number(r.val_loss), r.best_val_loss < r.val_loss ? 'best ' + format.number(r.best_val_loss) + ' at ' + format.whole(r.best_step) : ''));
  if (r.tokens_per_s) facts.push(fact('tokens/s', format.short(r.tokens_per_s)));
  const end = m.summary;
  if (end && end.mfu > 0) facts.push(fact('MFU', (100 * end.mfu).toFixed(1) + ' %', '', end.mfu_convention));
  if (left) facts.push(fact('time to go', format.duration(left.middle), left.high - left.low > 1 ? format.duration(left.low) + ' \u2013 ' + format.duration(left.high) : '', 'by the time of recent steps; from the faster fifth of them to the slower fifth'));
  if (r.began) facts.push(fact(r.state === 'running' ? 'running for' : 'took', format.duration((r.state === 'running' ? m.now() : r.updated) - r.began)));
  const save = m.last('checkpoint');
  if (save && save.time) facts.push(fact('last checkpoint', r.state === 'running' ? format.duration(Math.max(0, m.now() - save.time)) : 'step ' + format.whole(save.step), r.state === 'running' ? 'ago, step ' + format.whole(save.step) : ''));
  if (end && end.energy_j) facts.push(fact('energy', format.number(end.energy_j / 3.6e6) + ' kWh'));
  const power = m.series['host.power_w'];
  if (power && power.m.length) facts.push(fact('power', format.number(power.m[power.m.length - 1]) + ' W'));
  if (r.incidents) facts.push(fact('incidents', String(r.incidents)));
  $('facts').replaceChildren(...facts);
  $('wait').hidden = Boolean(m.start);
}

function showOthers(m) {
  const select = $('with'), names = m.others;
  $('with-field').hidden = page.file || names.length === 0;
  const said = names.join('/') + (m.with ? m.with.name : '');
  if (said === select.dataset.said) return;
  select.dataset.said = said;
  select.replaceChildren(el('option', { value: '', textContent: '\u2013' }), ...names.map((n) => el('option', { value: n, textContent: n })));
  select.value = m.with ? m.with.name : '';
}

/* --- the panels --- */

let model = null;
const panels = [], more = new Map();

function buildPanels() {
  const main = $('main'), add = (title, list) => {
    main.append(el('h3', { textContent: title }));
    for (const p of list) { panels.push(p); main.append(p.root); }
  };
  add('Learning', [lossPanel(), ratePanel(), gradientPanel()]);
  add('Speed', [splitPanel(), speedPanel(), stepPanel(), flopsPanel(), memoryPanel()]);
  add('Events', [timelinePanel(), checkpointPanel()]);
  add('Text and ranks', [samplePanel(), rankPanel()]);
  add('Settings', [settingsPanel(), aboutPanel()]);
  main.append(el('h3', { textContent: 'More that was recorded', id: 'more' }));
}

function update() {
  if (!model) return;
  const shown = page.closer ? Object.assign(Object.create(model), { series: { ...model.series, ...page.closer } }) : model;
  showHead(model);
  showOthers(model);
  for (const [name, s] of Object.entries(model.series)) {
    if (KNOWN.test(name) || more.has(name)) continue;
    const p = morePanel(name, s);
    more.set(name, p);
    panels.push(p);
    $('main').append(p.root);
  }
  $('more').hidden = more.size === 0;
  for (const p of panels) p.update(shown);
  for (const h of document.querySelectorAll('main > h3')) {
    let next = h.nextElementSibling, any = false;
    for (; next && next.tagName !== 'H3'; next = next.nextElementSibling) any = any || !next.hidden;
    h.hidden = !any;
  }
  $('whole').hidden = page.view.from === null;
  $('axis').hidden = !model.hasTimes();
  $('axis').textContent = page.byTime ? 'time' : 'steps';
  $('log').setAttribute('aria-pressed', String(page.log));
}

/* What is in view, with more points than the whole has. */
async function lookCloser() {
  const v = page.view;
  page.closer = null;
  update();
  if (v.from === null || page.file || page.byTime) return;
  const from = Math.floor(v.from), to = Math.ceil(v.to);
  try {
    const answer = await fetch('range?from=' + from + '&to=' + to + '&bins=1200');
    const data = answer.ok ? await answer.json() : null;
    if (data && v.from !== null && Math.floor(v.from) === from) page.closer = data.series;
  } catch { /* the curves of the whole run stay */ }
  update();
}

/* --- what comes --- */

function say(text) { $('link').textContent = text; }

function follow(name) {
  if (page.stream) page.stream.close();
  const s = page.stream = new EventSource('stream?bins=600' + (name === undefined ? '' : '&with=' + encodeURIComponent(name || '-')));
  s.addEventListener('snapshot', (e) => {
    model = new Model(JSON.parse(e.data));
    say('');
    update();
  });
  s.addEventListener('changes', (e) => {
    if (model) model.change(JSON.parse(e.data));
    say('');
    update();
  });
  s.onerror = () => {
    const over = model && model.run.state !== 'running';
    say(over ? 'the server has ended' : 'no connection; trying again');
    if (s.readyState === EventSource.CLOSED) setTimeout(() => follow(name), 3000);
  };
}

/* --- controls --- */

function remember(key, value) {
  try { localStorage.setItem('lineshaft.' + key, value); } catch { /* not kept */ }
}
function remembered(key) {
  try { return localStorage.getItem('lineshaft.' + key); } catch { return null; }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  for (const p of panels) { if (p.chart) p.chart.later(); if (p.draw && p.model) p.draw(p.model); }
}
const dark = matchMedia('(prefers-color-scheme: dark)');
function systemTheme() { setTheme(remembered('theme') || (dark.matches ? 'dark' : 'light')); }

const actions = {
  t() { const n = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'; remember('theme', n); setTheme(n); },
  a() { if (!model || !model.hasTimes()) return; page.byTime = !page.byTime; page.closer = null; page.view.zoom(null, null); },
  l() { page.log = !page.log; update(); },
  r() { page.view.zoom(null, null); },
  '[': () => setSmooth(page.smooth - 0.1),
  ']': () => setSmooth(page.smooth + 0.1),
  '?': () => { $('keys').hidden = !$('keys').hidden; },
  Escape() { if (!$('keys').hidden) $('keys').hidden = true; else page.view.zoom(null, null); },
  j: () => jump(1),
  k: () => jump(-1),
};

function setSmooth(v) {
  page.smooth = Math.round(100 * Math.max(0, Math.min(0.99, v))) / 100;
  $('smooth').value = page.smooth;
  $('smooth').title = String(page.smooth);
  update();
}

function jump(by) {
  const list = panels.filter((p) => !p.root.hidden), i = list.findIndex((p) => p.root.contains(document.activeElement));
  const next = list[Math.max(0, Math.min(list.length - 1, i < 0 ? 0 : i + by))];
  if (!next) return;
  (next.chart ? next.body : next.root).focus({ preventScroll: true });
  next.root.scrollIntoView({ block: 'nearest' });
}

function begin() {
  if (!page.file) history.replaceState(null, '', location.pathname); /* the token need not stay in sight */
  systemTheme();
  dark.addEventListener('change', systemTheme);
  buildPanels();
  page.view.onZoom = lookCloser;
  $('theme').onclick = actions.t;
  $('axis').onclick = actions.a;
  $('log').onclick = actions.l;
  $('whole').onclick = actions.r;
  $('help').onclick = actions['?'];
  $('keys').onclick = actions['?'];
  $('smooth').oninput = () => setSmooth(Number($('smooth').value));
  $('with').onchange = () => follow($('with').value);
  document.addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || ['INPUT', 'SELECT'].includes(e.target.tagName)) return;
    if (actions[e.key]) { actions[e.key](); e.preventDefault(); }
  });
  if (!page.file) { follow(); setInterval(() => { if (model) showHead(model); }, 1000); return; }
  model = new Model(JSON.parse($('data').textContent));
  say('report of ' + format.clock(model.run.updated || 0));
  update();
}
begin();
