'use strict';
/* chart.js -- curves on a canvas, and numbers as people read them.
 *
 * A curve has x (rising) and y; where a point stands for several values, lo and hi are their smallest
 * and largest, drawn as a pale band, so that no peak is hidden. All charts over the same x share a
 * view: what is zoomed and pointed at in one is zoomed and pointed at in all. */

const format = {
  /* 0.001234, 12.35, 1,234, 12.3k: four digits or so. */
  number(v) {
    if (v === null || v === undefined || !isFinite(v)) return '\u2013';
    const a = Math.abs(v);
    if (a === 0) return '0';
    if (a < 1e-3) return v.toExponential(2).replace('e-0', 'e-');
    if (a < 1) return v.toPrecision(4).replace(/0+$/, '').replace(/\.$/, '');
    if (a < 100) return v.toFixed(a < 10 ? 4 : 2).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '');
    if (a < 1e4) return Math.round(v).toLocaleString('en-US');
    return format.short(v);
  },
  short(v) {
    const units = ['', 'k', 'M', 'G', 'T', 'P'];
    let u = 0;
    while (Math.abs(v) >= 999.5 && u < units.length - 1) { v /= 1000; u++; }
    return v.toFixed(u === 0 || Math.abs(v) >= 100 ? 0 : Math.abs(v) >= 10 ? 1 : 2).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '') + units[u];
  },
  /* 773 kFLOP */
  si(v, unit) { return format.short(v).replace(/^([-\d.]+)(\D?)$/, '$1 $2') + unit; },
  whole(v) { return v === null || v === undefined ? '\u2013' : Math.round(v).toLocaleString('en-US'); },
  bytes(v) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let u = 0;
    if (v === null || v === undefined || !isFinite(v)) return '\u2013';
    while (Math.abs(v) >= 1024 && u < units.length - 1) { v /= 1024; u++; }
    return v.toFixed(u === 0 || Math.abs(v) >= 100 ? 0 : 1) + ' ' + units[u];
  },
  percent(v) { return isFinite(v) ? (100 * v).toFixed(v < 0.1 ? 1 : 0) + ' %' : '\u2013'; },
  /* 0.4 s, 34 s, 12 min, 3 h 05, 2 d 4 h */
  duration(s) {
    if (s === null || s === undefined || !isFinite(s)) return '\u2013';
    if (s < 1) return s.toFixed(2) + ' s';
    if (s < 10) return s.toFixed(1) + ' s';
    if (s < 99.5) return Math.round(s) + ' s';
    if (s < 5400) return Math.round(s / 60) + ' min';
    const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
    if (h < 48) return h + ' h ' + String(m).padStart(2, '0');
    return Math.floor(h / 24) + ' d ' + h % 24 + ' h';
  },
  clock(s) {
    const d = new Date(s * 1000), p = (n) => String(n).padStart(2, '0');
    return d.getFullYear() + '-' + p(d.getMonth() + 1) + '-' + p(d.getDate()) + ' ' + p(d.getHours()) + ':' + p(d.getMinutes()) + ':' + p(d.getSeconds());
  },
  unit(v, unit) {
    if (unit === 'bytes') return format.bytes(v);
    if (unit === 'bytes/s') return format.bytes(v) + '/s';
    if (unit === 'ratio') return format.percent(v);
    if (unit === 's') return format.duration(v);
    return format.number(v) + (unit && v !== null && isFinite(v) ? ' ' + unit : '');
  },
};

/* A colour of page.css by its name, as it is now. */
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
}

/* Marks between two ends: 1, 2 or 5 times a power of ten apart. */
function marks(lo, hi, n) {
  const raw = (hi - lo) / n, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = (raw > 5 * power ? 10 : raw > 2 * power ? 5 : raw > power ? 2 : 1) * power;
  const out = [];
  for (let v = Math.ceil(lo / step - 1e-9) * step; v <= hi + step * 1e-9; v += step)
    out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
}

/* Marks of time on round seconds, minutes, hours. */
function timeMarks(lo, hi, n) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  const step = steps.find((s) => (hi - lo) / s <= n) || 2592000;
  const out = [];
  for (let v = Math.ceil(lo / step) * step; v <= hi; v += step) out.push(v);
  return out;
}

/* Exponential smoothing, with the beginning corrected for what was not there; gaps stay. */
function smoothed(y, weight) {
  let sum = 0, norm = 0;
  return y.map((v) => {
    if (v === null) return null;
    sum = weight * sum + (1 - weight) * v;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

/* The index of the value nearest to x in a rising list. */
function nearest(list, x) {
  let lo = 0, hi = list.length - 1;
  while (hi - lo > 1) {
    const mid = (lo + hi) >> 1;
    if (list[mid] <= x) lo = mid; else hi = mid;
  }
  return hi >= 0 && Math.abs(list[hi] - x) < Math.abs(list[lo] - x) ? hi : lo;
}

/* What charts over the same x share. */
class View {
  constructor() {
    this.charts = new Set();
    this.from = this.to = null; /* null: all */
    this.at = null;             /* x that is pointed at */
    this.onZoom = null;
  }
  zoom(from, to) {
    this.from = from;
    this.to = to;
    for (const c of this.charts) c.later();
    if (this.onZoom) this.onZoom();
  }
  point(x) {
    this.at = x;
    for (const c of this.charts) c.drawPointer();
  }
}

class Chart {
  /* options: {view, label, unit, log, zero, stack, max, xText(x), xMarks(lo, hi, n)} */
  constructor(host, legend, options) {
    this.host = host;
    this.legend = legend;
    this.options = options;
    this.curves = [];
    this.base = document.createElement('canvas');
    this.over = document.createElement('canvas');
    host.append(this.base, this.over);
    host.tabIndex = 0;
    host.setAttribute('role', 'img');
    options.view.charts.add(this);
    this.listen();
    new ResizeObserver(() => this.later()).observe(host);
  }

  /* curves: [{label, color, x, y, lo, hi, faint, dash, dots, band, text(v)}] */
  set(curves) {
    this.curves = curves;
    this.later();
  }

  later() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => { this.due = 0; this.draw(); });
  }

  /* --- input --- */

  listen() {
    const view = this.options.view, h = this.host;
    let drag = null;
    const at = (e) => this.xAt(e.clientX - h.getBoundingClientRect().left);
    h.addEventListener('pointermove', (e) => {
      view.point(at(e));
      if (drag !== null && e.pointerType === 'mouse') { this.select = [drag, at(e)]; this.drawPointer(); }
    });
    h.addEventListener('pointerleave', () => { if (drag === null) view.point(null); });
    h.addEventListener('pointerdown', (e) => {
      if (e.pointerType === 'mouse' && e.button === 0) { drag = at(e); h.setPointerCapture(e.pointerId); }
    });
    h.addEventListener('pointerup', (e) => {
      const s = this.select;
      drag = this.select = null;
      if (s && this.frame && Math.abs(this.px(s[0]) - this.px(s[1])) > 6) view.zoom(Math.min(s[0], s[1]), Math.max(s[0], s[1]));
      else this.drawPointer();
    });
    h.addEventListener('dblclick', () => view.zoom(null, null));
    h.addEventListener('keydown', (e) => {
      const by = e.key === 'ArrowRight' ? 1 : e.key === 'ArrowLeft' ? -1 : 0;
      const x = this.curves.length ? this.curves[0].x : [];
      if (!by || !x.length) return;
      const i = view.at === null ? x.length - 1 : nearest(x, view.at) + by * (e.shiftKey ? 10 : 1);
      view.point(x[Math.max(0, Math.min(x.length - 1, i))]);
      e.preventDefault();
    });
    h.addEventListener('blur', () => view.point(null));
  }

  /* --- the frame --- */

  /* Ends of x and y over what is in view. */
  range() {
    const v = this.options.view;
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const c of this.curves)
      if (c.x.length && !c.guest) { x0 = Math.min(x0, c.x[0]); x1 = Math.max(x1, c.x[c.x.length - 1]); }
    if (this.options.xEnd) x1 = Math.max(x1, this.options.xEnd());
    if (v.from !== null) { x0 = v.from; x1 = v.to; }
    for (const c of this.curves)
      for (let i = 0; i < c.x.length; i++) {
        if (c.x[i] < x0 || c.x[i] > x1) continue;
        const lo = c.lo ? c.lo[i] : c.y[i], hi = c.hi ? c.hi[i] : c.y[i];
        if (lo === null || hi === null || (this.options.log && lo <= 0)) continue;
        if (lo < y0) y0 = lo;
        if (hi > y1) y1 = hi;
      }
    if (this.options.stack) { y0 = 0; y1 = 1; }
    if (!(x1 > x0)) { x0 -= 1; x1 = x0 + 2; }
    if (!isFinite(y0)) return null;
    if (this.options.zero && !this.options.log) y0 = Math.min(0, y0);
    if (!(y1 > y0)) { const a = Math.abs(y0) * 0.1 || 1; y0 -= this.options.zero ? 0 : a; y1 += a; }
    if (this.options.log) { y0 = Math.log10(y0); y1 = Math.log10(y1); }
    if (!this.options.stack) {
      const room = (y1 - y0) * 0.05;
      y1 += room;
      if (!this.options.zero || this.options.log) y0 -= room;
    }
    return { x0, x1, y0, y1 };
  }

  px(x) { const f = this.frame; return f.left + (x - f.x0) / (f.x1 - f.x0) * f.width; }
  py(y) {
    const f = this.frame, v = this.options.log ? Math.log10(y) : y;
    return f.top + (f.y1 - v) / (f.y1 - f.y0) * f.height;
  }
  xAt(px) {
    const f = this.frame;
    return f ? Math.max(f.x0, Math.min(f.x1, f.x0 + (px - f.left) / f.width * (f.x1 - f.x0))) : 0;
  }

  yMarks(f) {
    const text = this.options.stack ? (v) => Math.round(100 * v) + ' %' : this.options.yText ? this.options.yText : (v) => this.options.unit === 'bytes' ? format.bytes(v) : format.number(v);
    if (!this.options.log)
      return marks(f.y0, f.y1, Math.max(2, Math.floor(f.height / 26))).map((v) => [v, text(v)]);
    const out = [];
    for (let p = Math.floor(f.y0); p <= Math.ceil(f.y1); p++)
      for (const k of f.y1 - f.y0 > 3 ? [1] : f.y1 - f.y0 > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8]) {
        const v = k * Math.pow(10, p), l = Math.log10(v);
        if (l >= f.y0 && l <= f.y1) out.push([v, text(v)]);
      }
    return out;
  }

  surface(canvas) {
    const w = this.host.clientWidth, h = this.host.clientHeight, r = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(w * r) || canvas.height !== Math.round(h * r)) {
      canvas.width = Math.round(w * r);
      canvas.height = Math.round(h * r);
    }
    const g = canvas.getContext('2d');
    g.setTransform(r, 0, 0, r, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = '10.5px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
    return g;
  }

  /* --- drawing --- */

  draw() {
    const w = this.host.clientWidth, h = this.host.clientHeight;
    if (w < 20 || h < 20) return;
    const g = this.surface(this.base), range = this.range();
    this.frame = null;
    if (!range) { this.drawPointer(); return; }
    this.frame = { ...range, left: 0, top: 6, width: w, height: h - 24 };
    const yMarks = this.yMarks(this.frame);
    const left = Math.max(...yMarks.map((m) => g.measureText(m[1]).width), 14) + 8;
    this.frame.left = left;
    this.frame.width = w - left - 6;
    this.drawFrame(g, yMarks, h);
    g.save();
    g.beginPath();
    g.rect(left, 0, this.frame.width + 4, h - 17);
    g.clip();
    if (this.options.stack) this.drawStack(g);
    else for (const c of this.curves) this.drawCurve(g, c);
    g.restore();
    this.drawPointer();
  }

  drawFrame(g, yMarks, h) {
    const f = this.frame;
    g.strokeStyle = color('grid');
    g.fillStyle = color('quiet');
    g.lineWidth = 1;
    g.textAlign = 'right';
    g.textBaseline = 'middle';
    for (const [v, text] of yMarks) {
      const y = Math.round(this.py(v)) + 0.5;
      g.beginPath();
      g.moveTo(f.left, y);
      g.lineTo(f.left + f.width, y);
      g.stroke();
      g.fillText(text, f.left - 6, y);
    }
    g.textBaseline = 'alphabetic';
    g.textAlign = 'center';
    const find = this.options.xMarks || marks;
    for (const v of find(f.x0, f.x1, Math.max(2, Math.floor(f.width / (page.byTime ? 80 : 55))))) {
      const text = this.options.xText(v), half = g.measureText(text).width / 2;
      const x = Math.max(f.left + half - 4, Math.min(f.left + f.width - half + 4, this.px(v)));
      g.fillText(text, x, h - 4);
    }
  }

  /* Line pieces between gaps. */
  trace(g, x, y) {
    let pen = false;
    g.beginPath();
    for (let i = 0; i < x.length; i++) {
      if (y[i] === null || (this.options.log && y[i] <= 0)) { pen = false; continue; }
      if (pen) g.lineTo(this.px(x[i]), this.py(y[i]));
      else g.moveTo(this.px(x[i]), this.py(y[i]));
      pen = true;
    }
  }

  drawCurve(g, c) {
    const ink = color(c.color);
    if (c.lo && c.hi) {
      g.globalAlpha = 0.16;
      g.fillStyle = ink;
      g.beginPath();
      let begun = false;
      const ok = (i) => c.lo[i] !== null && !(this.options.log && c.lo[i] <= 0);
      for (let i = 0; i < c.x.length; i++)
        if (ok(i)) { g[begun ? 'lineTo' : 'moveTo'](this.px(c.x[i]), this.py(c.hi[i])); begun = true; }
      for (let i = c.x.length - 1; i >= 0; i--)
        if (ok(i)) g.lineTo(this.px(c.x[i]), this.py(c.lo[i]));
      g.fill();
      /* Its edges, so that a single peak among a hundred thousand steps is seen. */
      g.globalAlpha = 0.4;
      g.strokeStyle = ink;
      g.lineWidth = 0.8;
      for (const edge of [c.lo, c.hi]) { this.trace(g, c.x, edge); g.stroke(); }
    }
    g.globalAlpha = c.faint ? 0.35 : 1;
    g.strokeStyle = g.fillStyle = ink;
    g.lineWidth = c.faint ? 1 : 1.6;
    g.lineJoin = 'round';
    g.setLineDash(c.dash || []);
    this.trace(g, c.x, c.y);
    g.stroke();
    g.setLineDash([]);
    const visible = c.dots && c.x.length < this.frame.width / 8;
    for (let i = 0; (visible || c.x.length === 1) && i < c.x.length; i++) {
      if (c.y[i] === null) continue;
      g.beginPath();
      g.arc(this.px(c.x[i]), this.py(c.y[i]), 2.4, 0, 7);
      g.fill();
    }
    g.globalAlpha = 1;
  }

  /* Shares that add up to 1, as steps: each is what it was over its own range of x. */
  drawStack(g) {
    const x = this.curves.length ? this.curves[0].x : [];
    const floor = x.map(() => 0);
    for (const c of this.curves) {
      g.fillStyle = color(c.color);
      g.beginPath();
      for (let i = 0; i < x.length; i++)
        g[i ? 'lineTo' : 'moveTo'](this.px(x[i]), this.py(floor[i] + (c.y[i] || 0)));
      for (let i = x.length - 1; i >= 0; i--) {
        g.lineTo(this.px(x[i]), this.py(floor[i]));
        floor[i] += c.y[i] || 0;
      }
      g.fill();
    }
  }

  /* --- what is pointed at --- */

  drawPointer() {
    const g = this.surface(this.over), f = this.frame, at = this.options.view.at;
    this.writeLegend(at);
    if (!f) return;
    if (this.select) {
      g.fillStyle = color('select');
      g.fillRect(this.px(this.select[0]), f.top, this.px(this.select[1]) - this.px(this.select[0]), f.height);
    }
    if (at === null || at < f.x0 || at > f.x1) return;
    const main = this.curves.find((c) => c.x.length);
    if (!main) return;
    const x = this.px(main.x[nearest(main.x, at)]);
    g.strokeStyle = color('third');
    g.globalAlpha = 0.6;
    g.beginPath();
    g.moveTo(Math.round(x) + 0.5, f.top);
    g.lineTo(Math.round(x) + 0.5, f.top + f.height);
    g.stroke();
    g.globalAlpha = 1;
    for (const c of this.options.stack ? [] : this.curves) {
      const i = nearest(c.x, at);
      if (!c.x.length || c.y[i] === null || c.faint || Math.abs(this.px(c.x[i]) - x) > 30) continue;
      g.fillStyle = color(c.color);
      g.beginPath();
      g.arc(this.px(c.x[i]), this.py(c.y[i]), 3, 0, 7);
      g.fill();
    }
  }

  /* Values at the pointer, else the last ones. Where a point stands for several: from smallest to
   * largest. */
  writeLegend(at) {
    const parts = [];
    const text = (c, v) => c.text ? c.text(v) : this.options.stack ? format.percent(v) : format.unit(v, this.options.unit);
    for (const c of this.curves) {
      if (!c.x.length || (c.hide && !c.hide())) continue;
      const i = at === null ? c.x.length - 1 : nearest(c.x, at);
      let value = text(c, c.y[i]);
      if (at !== null && c.lo && c.n && c.n[i] > 1 && c.lo[i] !== null) value += ' (' + format.number(c.lo[i]) + ' \u2026 ' + format.number(c.hi[i]) + ')';
      parts.push([c.color, c.label, value, c.faint]);
    }
    const first = this.curves.find((c) => c.x.length);
    const where = at === null || !first ? '' : this.options.xText(first.x[nearest(first.x, at)], true);
    const said = where + parts.map((p) => p[1] + p[2]).join('');
    if (said === this.said) return;
    this.said = said;
    this.legend.replaceChildren();
    if (where) {
      const s = document.createElement('span');
      s.textContent = where;
      this.legend.append(s);
    }
    for (const [ink, label, value, faint] of parts) {
      const s = document.createElement('span'), key = document.createElement('i'), b = document.createElement('b');
      key.style.background = 'var(--' + ink + ')';
      if (faint) key.style.opacity = '0.45';
      b.textContent = value;
      s.append(key, label ? label + ' ' : '', b);
      this.legend.append(s);
    }
    this.host.setAttribute('aria-label', this.options.label + ': ' + parts.map((p) => p[1] + ' ' + p[2]).join(', '));
  }
}
