'use strict';
/* panels.js -- one function for each panel: what of the model it shows, and how.
 *
 * Text that a run brought along (names, samples, incidents) only ever becomes textContent. */

/* An element with properties and children; strings become text. */
function el(tag, properties, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key === 'style') Object.assign(e.style, value);
    else if (key in e) e[key] = value;
    else e.setAttribute(key, value);
  }
  for (const c of children) if (c !== null && c !== undefined) e.append(c);
  return e;
}

const PARTS = [
  ['data', 'p1'], ['forward', 'p2'], ['backward', 'p3'], ['reduce', 'p4'], ['exchange', 'p5'],
  ['optimizer', 'p6'], ['eval', 'p7'], ['checkpoint', 'p8'], ['other', 'p9'],
];

/* --- the frame of a panel --- */

class Panel {
  constructor(id, title, width, note) {
    this.legend = el('div', { className: 'legend' });
    this.note = el('span', { className: 'note', textContent: note || '' });
    this.body = el('div', {});
    this.root = el('section', { className: 'panel ' + width, id: 'panel-' + id, tabIndex: -1 },
      el('div', { className: 'title' }, el('h2', { textContent: title }), this.note, this.legend), this.body);
    this.root.setAttribute('aria-label', title);
  }
  show(visible) { this.root.hidden = !visible; }
}

class ChartPanel extends Panel {
  constructor(id, title, width, options, update) {
    super(id, title, width + ' drawn', options.note);
    this.body.className = 'chart';
    this.body.before(this.legend);
    this.legend.classList.toggle('one', !options.stack);
    this.options = { label: title, view: page.view, xText: page.xText, ...options };
    this.chart = new Chart(this.body, this.legend, this.options);
    this.make = update;
  }
  update(model) {
    const curves = this.make(model, this);
    this.show(curves.some((c) => c.x.length));
    this.options.xMarks = !this.options.timed && page.byTime ? timeMarks : this.options.timed ? timeMarks : undefined;
    if (!this.root.hidden) this.chart.set(curves);
  }
}

/* A series as a curve: x as the axis has it. */
function curve(model, name, label, ink, more) {
  const s = model.series[name] || { x: [], m: [] };
  return { label, color: ink, x: page.axisOf(model, s), y: s.m, lo: s.lo, hi: s.hi, n: s.n, ...more };
}

/* The same in two: what was measured, pale, and smoothed. */
function twice(model, name, label, ink, more) {
  const raw = curve(model, name, label, ink, more);
  if (page.smooth === 0) return [raw];
  return [{ ...raw, label: label ? label + ' raw' : 'raw', faint: true },
    { ...raw, label: label || 'smooth', y: smoothed(raw.y, page.smooth), lo: null, hi: null, n: null }];
}

/* The same series of the run that this one is compared with. */
function beside(model, name, more) {
  if (!model.with || !model.with.series[name]) return [];
  const c = curve(model.with, name, model.with.name, 'other', { guest: true, ...more });
  return [{ ...c, y: smoothed(c.y, page.smooth), lo: null, hi: null, n: null, dash: [5, 3] }];
}

/* --- learning --- */

function lossPanel() {
  const p = new ChartPanel('loss', 'Loss', 'w8 tall', {}, (m) => {
    p.options.log = page.log;
    return [...twice(m, 'loss', '', 'accent'),
      curve(m, 'val_loss', 'validation', 'second', { dots: true }),
      ...beside(m, 'loss'), ...beside(m, 'val_loss', { faint: true, label: '' }).map((c) => ({ ...c, hide: () => false }))];
  });
  return p;
}

function ratePanel() {
  return new ChartPanel('lr', 'Learning rate', '', { zero: true },
    (m) => [curve(m, 'lr', '', 'accent'), ...beside(m, 'lr')]);
}

function gradientPanel() {
  const p = new ChartPanel('grad', 'Gradient norm', '', { zero: true }, (m) => {
    const skipped = m.series.skipped ? m.series.skipped.x.length : 0;
    p.note.textContent = 'before clipping' + (skipped ? ', ' + skipped + ' steps skipped' : '');
    return [...twice(m, 'grad_norm', '', 'accent'), ...beside(m, 'grad_norm')];
  });
  return p;
}

/* --- speed --- */

function speedPanel() {
  return new ChartPanel('speed', 'Tokens per second', '', { zero: true, note: 'of all ranks, in each step' },
    (m) => [...twice(m, 'tokens_per_s', '', 'accent'), ...beside(m, 'tokens_per_s')]);
}

/* Model FLOP/s; a share of the peak where a run has measured that (at its end). */
function flopsPanel() {
  const p = new ChartPanel('mfu', 'Model FLOP/s', '', { zero: true }, (m) => {
    const start = m.start || {}, f = start.flops_per_token || m.flopsFromSummary();
    const peak = m.peak();
    p.root.querySelector('h2').textContent = peak ? 'MFU' : 'Model FLOP/s';
    p.root.title = 'FLOP/s = tokens/s \u00d7 (6 N + 6 L C T); N parameters (4 for one that is not trained), L layers, C width, T context'
      + (f ? '; here ' + format.si(f, 'FLOP') + ' for each token' : '')
      + (peak ? '. MFU = FLOP/s \u00f7 peak; peak ' + format.si(peak, 'FLOP/s') + ', measured at the end of the run' : '. The peak is measured at the end of the run');
    p.note.textContent = f ? '6 N + 6 L C T = ' + format.si(f, 'FLOP') + ' a token' + (peak ? ', peak ' + format.si(peak, 'FLOP/s') : '') : '';
    if (!f) return [];
    p.options.yText = peak ? (v) => Math.round(100 * v) + ' %' : (v) => format.short(v);
    const scale = peak ? f / peak : f, text = peak ? (v) => (100 * v).toFixed(1) + ' %' : (v) => format.si(v, 'FLOP/s');
    return twice(m, 'tokens_per_s', '', 'accent').map((c) => ({
      ...c, text, y: c.y.map((v) => v === null ? null : v * scale),
      lo: c.lo && c.lo.map((v) => v === null ? null : v * scale), hi: c.hi && c.hi.map((v) => v === null ? null : v * scale), n: null }));
  });
  p.options.unit = '';
  return p;
}

function stepPanel() {
  return new ChartPanel('step', 'Time of a step', '', { zero: true, unit: 'ms' },
    (m) => twice(m, 'step_ms', '', 'accent'));
}

/* Parts of a step's time, each as its share: they add up to 100 %. */
function splitPanel() {
  return new ChartPanel('split', 'Where the time of a step goes', 'w8', { stack: true, note: 'shares of all its parts, of the first rank' }, (m) => {
    const base = PARTS.map((p) => m.series['split.' + p[0] + '_ms']).find((s) => s && s.x.length);
    if (!base) return [];
    const all = page.axisOf(m, base), v = page.view, inView = [];
    for (let i = 0; i < all.length; i++) if (v.from === null || (all[i] >= v.from && all[i] <= v.to)) inView.push(i);
    const stride = Math.max(1, Math.ceil(inView.length / 150)), x = inView.filter((_, k) => k % stride === 0).map((i) => all[i]);
    const parts = PARTS.map(([name, ink]) => {
      const s = m.series['split.' + name + '_ms'], y = x.map(() => 0);
      inView.forEach((i, k) => {
        if (s && s.x.length) y[Math.floor(k / stride)] += (s.x[i] === base.x[i] ? s.m[i] : s.m[nearest(s.x, base.x[i])]) || 0;
      });
      return { label: name, color: ink, x, y };
    });
    const sum = x.map((_, i) => parts.reduce((a, p) => a + p.y[i], 0));
    for (const p of parts) {
      p.y = p.y.map((t, i) => sum[i] > 0 ? t / sum[i] : 0);
      p.hide = () => p.y.some((share) => share >= 0.005);
    }
    return parts;
  });
}

/* --- memory and checkpoints --- */

function memoryPanel() {
  const p = new Panel('memory', 'Memory', '', 'of the first rank, as planned before the start');
  const inks = ['p3', 'p2', 'p6', 'p4', 'p1', 'p5', 'p7', 'p8', 'p9'];
  p.update = (m) => {
    const ledger = Object.entries((m.start || {}).ledger || {}).filter((e) => e[1] > 0).sort((a, b) => b[1] - a[1]);
    const total = (m.start || {}).ledger_bytes || 0, peak = (m.summary || {}).peak_bytes;
    p.show(ledger.length > 0);
    const said = JSON.stringify([ledger, total, peak]);
    if (said === p.said) return;
    p.said = said;
    const stack = el('div', { className: 'stack' }), rows = el('tbody', {});
    ledger.forEach(([name, bytes], i) => {
      const ink = 'var(--' + inks[i % inks.length] + ')';
      stack.append(el('div', { title: name, style: { width: 100 * bytes / total + '%', background: ink } }));
      rows.append(el('tr', {}, el('td', {}, el('span', { className: 'key', style: { background: ink } }), ' ' + name.replace(/_/g, ' ')),
        el('td', { className: 'num', textContent: format.bytes(bytes) }), el('td', { className: 'num quiet', textContent: format.percent(bytes / total) })));
    });
    p.legend.textContent = format.bytes(total) + (peak ? ', measured peak ' + format.bytes(peak) : '');
    p.body.replaceChildren(stack, el('div', { className: 'scroll' }, el('table', {}, rows)));
    p.body.lastChild.style.maxHeight = '140px';
  };
  return p;
}

/* A table that is made again when what it shows has changed. */
function table(heads, rows) {
  return el('table', {}, el('thead', {}, el('tr', {}, ...heads.map((h) => el('th', { className: h.startsWith('>') ? 'num' : '', textContent: h.replace('>', '') })))),
    el('tbody', {}, ...rows));
}
function row(...cells) {
  return el('tr', {}, ...cells.map((c) => c instanceof Node ? el('td', {}, c) : typeof c === 'object' && c ? el('td', { className: c.c || '', title: c.title || '' }, c.v) : el('td', { textContent: c })));
}
function num(v) { return { c: 'num', v: String(v) }; }

function checkpointPanel() {
  const p = new Panel('checkpoints', 'Checkpoints', '');
  p.update = (m) => {
    const saves = m.events('checkpoint').filter((e) => !e.redone).map((e) => e.e);
    p.show(saves.length > 0);
    const said = saves.length + ':' + (saves.length ? saves[saves.length - 1].time : 0);
    if (said === p.said) return;
    p.said = said;
    const sum = (key) => saves.reduce((a, s) => a + (s[key] || 0), 0);
    p.legend.textContent = saves.length + ' saved, ' + format.bytes(sum('bytes_written')) + ' written, steps waited ' + format.duration(sum('waited_ms') / 1e3);
    p.body.replaceChildren(el('div', { className: 'scroll' }, table(['>step', 'at', '>written', '>reused', '>took', '>waited'],
      saves.slice(-50).reverse().map((s) => row(num(format.whole(s.step)), { c: 'quiet', v: s.time ? format.clock(s.time).slice(11) : '', title: s.path },
        num(format.bytes(s.bytes_written)), num(format.bytes(s.bytes_reused)), num(format.duration(s.seconds)), num(format.duration((s.waited_ms || 0) / 1e3)))))));
    p.body.lastChild.style.maxHeight = '210px';
  };
  return p;
}

/* --- what happened --- */

/* Attempts as bars, incidents as lines, checkpoints as marks below, over the clock. */
function timelinePanel() {
  const p = new Panel('timeline', 'What happened', 'w8');
  const strip = el('div', { className: 'chart', style: { height: '64px' } }), list = el('div', { className: 'scroll' });
  const canvas = el('canvas', {});
  strip.append(canvas);
  strip.style.cursor = 'default';
  p.body.append(strip, list);
  p.draw = (m) => {
    const spans = m.attempts(), from = m.run.began, to = Math.max(m.run.updated || 0, from + 1);
    const w = strip.clientWidth, r = window.devicePixelRatio || 1;
    if (!w || !from) return;
    canvas.width = Math.round(w * r);
    canvas.height = Math.round(64 * r);
    const g = canvas.getContext('2d'), at = (t) => 2 + (t - from) / (to - from) * (w - 4);
    g.setTransform(r, 0, 0, r, 0, 0);
    g.clearRect(0, 0, w, 64);
    g.fillStyle = color('grid');
    g.fillRect(2, 12, w - 4, 16);
    spans.forEach((s, i) => {
      g.globalAlpha = i % 2 ? 0.55 : 0.75;
      g.fillStyle = color('good');
      g.fillRect(at(s.from), 12, Math.max(1, at(s.to) - at(s.from)), 16);
    });
    g.globalAlpha = 1;
    g.fillStyle = color('third');
    for (const c of m.events('checkpoint')) if (c.e.time) g.fillRect(at(c.e.time) - 0.5, 31, 1.2, 6);
    for (const i of m.events('incident')) {
      if (!i.e.time) continue;
      g.fillStyle = color('bad');
      const long = (i.e.seconds || 0) / (to - from) * (w - 4);
      g.fillRect(at(i.e.time) - long - 1, 6, Math.max(2, long), 28);
    }
    g.font = '10.5px system-ui, "DejaVu Sans", sans-serif';
    g.fillStyle = color('quiet');
    const first = format.clock(from), last = format.clock(to);
    g.textAlign = 'left';
    g.fillText(first, 2, 55);
    g.textAlign = 'right';
    g.fillText(first.slice(0, 10) === last.slice(0, 10) ? last.slice(11) : last, w - 2, 55);
    g.textAlign = 'center';
    g.fillText(format.duration(to - from), w / 2, 55);
  };
  new ResizeObserver(() => { if (p.model) p.draw(p.model); }).observe(strip);
  p.update = (m) => {
    p.model = m;
    p.show(Boolean(m.run.began));
    p.draw(m);
    const incidents = m.events('incident').map((e) => e.e), c = m.cost();
    p.legend.replaceChildren(el('span', {}, el('i', { style: { background: 'var(--good)' } }), m.run.attempts + (m.run.attempts === 1 ? ' process' : ' processes one after the other')),
      el('span', {}, el('i', { style: { background: 'var(--bad)' } }), incidents.length + (incidents.length === 1 ? ' incident' : ' incidents')));
    if (c.share !== null) p.legend.append(el('span', { title: '1 \u2212 (time between processes + recovery + steps done again) \u00f7 time since the beginning' }, 'productive ', el('b', { textContent: (100 * c.share).toFixed(1) + ' %' })));
    const said = incidents.length + ':' + m.run.attempts + ':' + m.events('start').length;
    if (said === p.said) return;
    p.said = said;
    const rows = [...m.events('incident'), ...m.events('start')].sort((a, b) => b.id - a.id).slice(0, 100).map(({ e }) => {
      const is = e.event === 'start';
      const cost = is ? '' : [e.seconds ? format.duration(e.seconds) : '', e.redone ? e.redone + (e.redone === 1 ? ' step' : ' steps') + ' again' : ''].filter(Boolean).join(', ');
      return row({ c: 'when', v: e.time ? format.clock(e.time).slice(m.days() ? 5 : 11) : '', title: e.time ? format.clock(e.time) : '' }, num(is ? format.whole(e.first_step) : format.whole(e.step)),
        el('span', { className: 'tag ' + (is ? 'good' : e.kind === 'joined' ? 'good' : e.kind === 'straggler' || e.kind === 'resume' ? 'warn' : 'bad'), textContent: is ? 'start' : e.kind }),
        is ? (e.first_step ? 'resumed' : 'began') + ' with ' + e.ranks + (e.ranks === 1 ? ' rank' : ' ranks') + ' on ' + e.nodes + (e.nodes === 1 ? ' machine' : ' machines') : e.text, { c: 'num', v: cost });
    });
    list.replaceChildren(table(['at', '>step', 'what', '', '>cost'], rows));
    list.style.maxHeight = '150px';
  };
  return p;
}

/* --- ranks --- */

function rankPanel() {
  const p = new Panel('ranks', 'Ranks', 'w6');
  const MOST = 64;
  p.update = (m) => {
    const ranks = m.ranks(), slow = (m.perRank['rank.ms_per_leaf'] || { last: [] }).last, work = (m.perRank['rank.sequences'] || { last: [] }).last;
    p.show(ranks.length > 0);
    const said = JSON.stringify([ranks.map((r) => [r.rank, r.pid, r.host]), slow, work, p.all]);
    if (said === p.said) return;
    p.said = said;
    const known = slow.filter((v) => v > 0).sort((a, b) => a - b), median = known[known.length >> 1];
    const most = known[known.length - 1];
    const hosts = new Set(ranks.map((r) => r.host)).size;
    p.legend.textContent = ranks.length + (ranks.length === 1 ? ' rank' : ' ranks') + ' on ' + hosts + (hosts === 1 ? ' machine' : ' machines');
    p.note.textContent = median ? 'ms for a leaf of a batch; median ' + format.number(median) : '';
    const strip = el('div', { className: 'strip' }), cards = ranks.some((r) => r.card !== undefined), shares = work.some((v) => v > 0);
    if (ranks.length > 8 && median)
      for (const r of ranks) {
        const v = slow[r.rank] || 0;
        strip.append(el('div', { title: 'rank ' + r.rank + ', ' + r.host + ': ' + format.number(v) + ' ms', style: {
          background: v > 1.25 * median ? 'var(--bad)' : 'var(--accent)', opacity: String(v ? Math.max(0.15, Math.min(1, v / most)) : 0.1) } }));
      }
    const shown = p.all || ranks.length <= MOST ? ranks : ranks.slice().sort((a, b) => (slow[b.rank] || 0) - (slow[a.rank] || 0)).slice(0, 16);
    const rows = shown.map((r) => {
      const v = slow[r.rank];
      const cells = [num(r.rank), r.host || '', { c: 'num quiet', v: String(r.pid) }];
      if (cards) cells.push(r.card === undefined ? '' : 'GPU ' + r.card);
      if (shares) cells.push(num(work[r.rank] > 0 ? work[r.rank] : ''));
      if (median) cells.push(num(v > 0 ? format.number(v) : ''), v > 0 ? el('div', { className: 'track' }, el('div', { style: { width: 100 * v / most + '%', background: v > 1.25 * median ? 'var(--bad)' : 'var(--accent)' } })) : '');
      return row(...cells);
    });
    const heads = ['>rank', 'machine', '>process', ...(cards ? ['card'] : []), ...(shares ? ['>sequences'] : []), ...(median ? ['>ms a leaf', ''] : [])];
    p.body.replaceChildren(strip, el('div', { className: 'scroll' }, table(heads, rows)));
    if (shown.length < ranks.length)
      p.body.append(el('button', { className: 'plain', textContent: 'the slowest ' + shown.length + ' are shown; show all ' + ranks.length, onclick: () => { p.all = true; p.update(m); } }));
  };
  return p;
}

/* --- samples --- */

function samplePanel() {
  const p = new Panel('samples', 'Samples of its text', 'w6', 'the newest first');
  p.update = (m) => {
    const samples = m.events('sample').filter((e) => !e.redone);
    p.show(samples.length > 0);
    const last = samples.length ? samples[samples.length - 1].id : 0;
    if (last === p.said) return;
    p.said = last;
    const list = el('div', { className: 'scroll', tabIndex: 0 });
    for (const { e } of samples.slice().reverse())
      list.append(el('div', { className: 'sample' }, el('span', { className: 'quiet', textContent: 'step ' + format.whole(e.step) }),
        el('pre', {}, el('span', { textContent: e.prompt || '' }), (e.text || '').startsWith(e.prompt || '') ? (e.text || '').slice((e.prompt || '').length) : e.text || '')));
    p.body.replaceChildren(list);
  };
  return p;
}

/* --- settings --- */

function settingText(v) { return v === undefined ? 'default' : typeof v === 'string' ? v : JSON.stringify(v); }

function settingsPanel() {
  const p = new Panel('settings', 'Settings', 'w6', 'that the run file does not leave at their default');
  const search = el('input', { type: 'search', placeholder: 'filter', ariaLabel: 'filter settings' }), box = el('div', { className: 'scroll' });
  const only = el('input', { type: 'checkbox' }), onlyLabel = el('label', { className: 'field' }, only, 'only differences');
  p.body.append(el('div', { className: 'row', style: { marginTop: '6px' } }, search, onlyLabel), box);
  search.oninput = only.onchange = () => { p.said = null; if (p.model) p.update(p.model); };
  p.update = (m) => {
    p.model = m;
    const own = (m.start || {}).settings || {}, other = m.with && m.with.start ? m.with.start.settings || {} : null;
    const keys = [...new Set([...Object.keys(own), ...Object.keys(other || {})])].sort();
    p.show(keys.length > 0);
    onlyLabel.hidden = !other;
    const said = JSON.stringify([own, other, search.value, only.checked]);
    if (said === p.said) return;
    p.said = said;
    const differs = (k) => other && JSON.stringify(own[k]) !== JSON.stringify(other[k]);
    const shown = keys.filter((k) => k.includes(search.value.trim()) && (!only.checked || !other || differs(k)));
    const n = keys.filter(differs).length;
    p.legend.textContent = other ? n + (n === 1 ? ' setting differs' : ' settings differ') + ' from ' + m.with.name : '';
    const rows = shown.map((k) => {
      const r = other ? row(k, { c: 'mono', v: settingText(own[k]) }, { c: 'mono', v: settingText(other[k]) }) : row(k, { c: 'mono', v: settingText(own[k]) });
      if (differs(k)) r.className = 'differs';
      return r;
    });
    box.replaceChildren(table(other ? ['setting', 'this run', m.with.name] : ['setting', 'value'], rows));
  };
  return p;
}

/* What the run is, in words. */
function aboutPanel() {
  const p = new Panel('about', 'The run', 'w6');
  p.update = (m) => {
    const s = m.start || {}, e = m.summary || {}, mesh = ['pp', 'tp', 'cp', 'zero'].filter((k) => s[k] > (k === 'zero' ? 0 : 1)).map((k) => k + ' ' + s[k]).join(', ');
    const facts = [
      ['model', s.family ? s.family + ', ' + format.short(s.parameters) + ' parameters' + (s.trained < s.parameters ? ', ' + format.short(s.trained) + ' trained' : '') + ', vocabulary ' + format.whole(s.vocab) : ''],
      ['data', s.train_tokens ? format.short(s.train_tokens) + ' tokens to train on, ' + format.short(s.validation_tokens) + ' to validate' : ''],
      ['batch', s.sequences ? s.sequences + ' sequences of ' + s.context + ' tokens' : ''],
      ['optimizer', s.optimizer ? s.optimizer + ', learning rate ' + format.number(s.lr) + ', ' + s.warmup + ' steps of warm-up' : ''],
      ['device', s.device || ''],
      ['arithmetic', s.kernels ? s.kernels + ' kernels, ' + s.reduce + ' sums' : ''],
      ['mesh', s.ranks ? s.ranks + (s.ranks === 1 ? ' rank' : ' ranks') + (mesh ? ', ' + mesh : '') + ', sync ' + s.sync : ''],
      ['first step after', e.start_to_first_step_s ? format.duration(e.start_to_first_step_s) : ''],
      ['energy', e.energy_j ? format.number(e.energy_j / 3.6e6) + ' kWh, ' + format.number(e.joules_per_token) + ' J a token' : ''],
      ['ended by', e.stopped_by || ''],
      ['weights', e.weights_hash || ''],
      ['compared with', m.with ? m.with.name + ': loss ' + format.number(m.with.run.loss) + ', validation ' + format.number(m.with.run.val_loss) : ''],
      ['lineshaft', m.version || ''],
    ].filter((f) => f[1]);
    p.show(facts.length > 1);
    const said = JSON.stringify(facts);
    if (said === p.said) return;
    p.said = said;
    p.body.replaceChildren(el('div', { className: 'scroll' }, el('table', {}, el('tbody', {}, ...facts.map((f) => row({ c: 'quiet', v: f[0] }, f[1]))))));
  };
  return p;
}

/* --- whatever else is recorded --- */

const KNOWN = /^(loss|val_loss|lr|grad_norm|tokens|tokens_per_s|step_ms|sequences|skipped|split\..*|checkpoint\..*|rank\..*)$/;

function morePanel(name, series) {
  const timed = series.timed;
  return new ChartPanel('more-' + name, name.replace(/[._]/g, ' '), 'w3', {
    unit: series.unit, timed, view: timed ? page.clockView : page.view,
    xText: timed ? (t, full) => full ? format.clock(t) : format.clock(t).slice(11, 16) : page.xText,
  }, (m) => {
    const s = m.series[name] || { x: [], m: [] };
    return timed ? [{ label: '', color: 'accent', x: s.x.map((v) => v / 1000), y: s.m, lo: s.lo, hi: s.hi, n: s.n }] : [curve(m, name, '', 'accent')];
  });
}
