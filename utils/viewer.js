// The interactive head viewer. viewer.py writes this file into each view and calls
// viewHeads with the data. No network, no storage, no ids; every word of the data
// enters the page as text. The colours follow the page, be it light or dark.

const LIGHT = { scheme: "light", ink: [0, 114, 178],
  line: "rgb(0 0 0 / .3)", soft: "rgb(0 0 0 / .05)", paper: [255, 255, 255] };
const DARK = { scheme: "dark", ink: [96, 184, 240],
  line: "rgb(255 255 255 / .32)", soft: "rgb(255 255 255 / .09)", paper: [18, 18, 18] };
const FONT = "12px system-ui, sans-serif", SMALL = "11px system-ui, sans-serif";
// Colours of heads that are drawn over each other, to be told apart by all eyes.
const HEADS = ["#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161",
  "#56b4e9", "#949494"];
const PICTURES = { "heat map": ["geometry", "heatMap"],
  lines: ["linesGeometry", "lineMap"], "one weight": ["whyGeometry", "whyMap"] };
const NEGATIVE = [213, 94, 0];
const READABLE = 12; // pixels of a row in which a word can be read
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1],
  ArrowRight: [0, 1], Home: [0, -Infinity], End: [0, Infinity], PageUp: [-10, 0],
  PageDown: [10, 0] };

// ---- small helpers
// An element with properties and children; strings become text, never markup.
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const options = (texts) => texts.map((text, value) => make("option", { value }, text));
const token = (name) => make("bdi", {}, name); // keeps right-to-left to itself
const written = (weight) => (Math.min(weight, 1000) / 1000).toFixed(3);
const clamp = (x, size) => Math.max(0, Math.min(x, size - 1));
const rgb = (colour) => colour.match(/[\d.]+/g).map(Number);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// Numbers from 0 to 1000, in rows of this length.
function decoded(text, data, length = data.tokens.length) {
  const value = [], base = data.digits.length, rows = [];
  [...data.digits].forEach((digit, i) => { value[digit.charCodeAt(0)] = i; });
  for (let i = 0, number, row = []; i < text.length;) {
    number = value[text.charCodeAt(i++)];
    if (number >= data.short) {
      number = data.short + (number - data.short) * base + value[text.charCodeAt(i++)];
    }
    if (row.push(number) < length) continue;
    rows.push(row);
    row = [];
  }
  return rows;
}

// A canvas of this size in the page's pixels, empty, and the pen to draw on it.
function blank(canvas, width, height) {
  const sharpness = window.devicePixelRatio || 1;
  canvas.width = width * sharpness;
  canvas.height = height * sharpness;
  canvas.style.width = `${width}px`;
  const pen = canvas.getContext("2d");
  pen.scale(sharpness, sharpness);
  pen.font = FONT;
  pen.textBaseline = "middle";
  return pen;
}

// The nearest background behind an element, as far as one is set.
function paperBehind(element) {
  for (let at = element; at; at = at.parentElement ?? at.getRootNode().host) {
    const [r, g, b, opacity = 1] = rgb(getComputedStyle(at).backgroundColor);
    if (opacity === 1) return [r, g, b];
  }
}

// Text that runs upwards.
function sideways(pen, text, x, y) {
  pen.save();
  pen.translate(x, y);
  pen.rotate(-Math.PI / 2);
  pen.fillText(text, 0, 0);
  pen.restore();
}

// Where a mouse is in a picture of this width.
function inPicture(event, canvas, width) {
  const box = canvas.getBoundingClientRect(), scale = width / (box.width || 1);
  return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
}

// An element that the Tab key reaches, and in which the arrow keys move.
function focusable(element, label, move) {
  element.tabIndex = 0;
  element.setAttribute("role", "application"); // the arrow keys are ours
  element.setAttribute("aria-label", label);
  element.onkeydown = (event) => {
    const step = STEPS[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(...step);
  };
}

function viewHeads(name, data) {
  for (const root of document.querySelectorAll(`[data-attn-view="${name}"]`)) {
    if (root.shadowRoot) continue;
    root.setAttribute("data-ready", "");
    new Viewer(root, data);
  }
}

class Viewer {
  constructor(root, data) {
    Object.assign(this, { root, data, rows: [], columns: [], colours: {} });
    this.weights = data.weights.map((layer) => layer.map((h) => decoded(h, data)));
    this.heads = data.weights.flatMap((layer, i) => layer.map((_, head) => [i, head]));
    this.readable = data.tokens.map((_, query) =>
      data.tokens.filter((_, key) => this.may(query, key)).length);
    // the query and the key that are looked at: rows and columns of what is shown
    this.query = this.key = null;
    this.pair = true;
    this.hidden = new Set();
    this.large = false;
    this.view = "heat map"; // or "lines", or "one weight"
    this.only = null; // or "query" or "key": whose lines are drawn, and no others
    this.drawn = new Set(); // heads of this layer whose lines are drawn
    this.head = data.start;
    this.makePage();
    this.follow();
    this.choose(...this.head);
    this.refresh();
  }

  // ---- the numbers
  may(query, key) { return !this.data.mask || this.data.mask[query][key] === 1; }

  // A column is one key, or all the keys that are not shown.
  open(query, column) { return column.keys.some((key) => this.may(query, key)); }

  weight(query, column, head = this.head) {
    const row = this.weights[head[0]][head[1]][query];
    if (!column.rest) return row[column.keys[0]];
    // as a share, so that many roundings do not add up
    return 1000 * sum(column.keys.map((key) => row[key])) / (sum(row) || 1);
  }

  text(token) { return this.data.tokens[token][0]; }
  name(token) { return this.data.tokens[token][1]; }
  label([layer, head]) { return this.data.labels[layer][head]; }
  headName([layer, head]) { return `layer ${this.data.layers[layer]}, head ${head}`; }
  labelled(text, at) { return text + (this.label(at) && ` · ${this.label(at)}`); }

  each(visit) { // visit(query, row, column, place of the column)
    this.rows.forEach((query, r) => this.columns.forEach((column, c) =>
      visit(query, r, column, c)));
  }

  // What is shown: all but the hidden tokens, which share a last column.
  layOut() {
    const { data } = this, name = "not shown";
    const [query, key] = [this.rows[this.query], this.columns[this.key]?.keys[0]];
    const rest = [...this.hidden].flatMap((i) => data.hide[i].at).sort((a, b) => a - b);
    this.rows = [...data.tokens.keys()].filter((i) => !rest.includes(i));
    this.columns = this.rows.map((i) =>
      ({ keys: [i], text: this.text(i), name: this.name(i) }));
    if (rest.length) this.columns.push({ keys: rest, text: name, name, rest: true });
    this.query = this.rows.includes(query) ? this.rows.indexOf(query) : null;
    this.key = this.columns.findIndex((c) => c.keys[0] === key);
    if (this.query === null || this.key < 0) this.lookAtTheStrongest();
  }

  // The strongest pair of a query that has a choice: what a caption would name. Pairs
  // with a special token, or of a token with itself, come after all others.
  lookAtTheStrongest() {
    const { special } = this.data;
    let best = -1;
    Object.assign(this, { query: 0, key: 0, pair: true });
    this.each((query, r, column, c) => {
      const [key] = column.keys;
      if (column.rest || this.readable[query] < 2) return;
      const plain = key !== query && !special.includes(query) && !special.includes(key);
      const value = this.weight(query, column) + (plain ? 2000 : 0);
      if (value > best) [best, this.query, this.key] = [value, r, c];
    });
  }

  // ---- what is said
  // "cat attends to the 0.500, sat 0.300": the three strongest of some cells.
  listed(name, verb, cells) {
    const best = cells.map(([other, query, column]) =>
      [other, this.weight(query, column)]).sort((a, b) => b[1] - a[1]).slice(0, 3);
    const words = best.flatMap(([other, value], i) =>
      [i ? ", " : " ", token(other), ` ${written(value)}`]);
    return make("p", {}, token(name), verb, ...(words.length ? words : [" nothing"]));
  }

  pairInWords(query, column) {
    const may = column.keys.filter((key) => this.may(query, key)).length;
    const said = may ? `: ${written(this.weight(query, column))} `
      + `(uniform ${written(1000 * may / this.readable[query])})`
      : ": hidden by the mask";
    const pair = [token(this.name(query)), " → ", token(column.name)];
    return make("p", {}, ...pair, said);
  }

  queryInWords(query) {
    const seen = this.columns.filter((c) => !c.rest && this.open(query, c));
    const cells = seen.map((c) => [c.name, query, c]);
    const said = this.listed(this.name(query), " attends to", cells);
    const even = written(1000 / this.readable[query]);
    if (!this.pair && this.readable[query]) said.append(` (uniform ${even})`);
    return said;
  }

  keyInWords(column) {
    const seen = this.rows.filter((query) => this.open(query, column));
    const cells = seen.map((query) => [this.name(query), query, column]);
    return this.listed(column.name, " is attended to by", cells);
  }

  removedInWords(rest, query) {
    const mean = sum(this.rows.map((q) => this.weight(q, rest))) / this.rows.length;
    const here = query === undefined ? [] : [`; ${written(this.weight(query, rest))} `
      + "of the weights of ", token(this.name(query))];
    return make("p", { className: "removed" },
      `not shown: ${written(mean)} of a query's weights on average`, ...here);
  }

  say() {
    const [query, column] = [this.rows[this.query], this.columns[this.key]];
    const rest = this.columns.find((one) => one.rest), lines = [];
    if (!this.rows.length) lines.push(make("p", {}, "every query is hidden"));
    else if (this.pair && column) lines.push(this.pairInWords(query, column));
    if (query !== undefined) lines.push(this.queryInWords(query));
    if (!this.pair && column) lines.push(this.keyInWords(column));
    if (rest && this.rows.length) lines.push(this.removedInWords(rest, query));
    this.said.replaceChildren(...lines);
    this.said.style.minHeight = rest ? "5.4em" : "3.9em"; // so that nothing jumps
  }

  // ---- pictures
  // The colour of a weight: from the paper to the ink.
  shade(value, ink = this.colours.ink) {
    const { paper } = this.colours, part = Math.min(value, 1000) / 1000;
    const mixed = paper.map((c, i) => Math.round(c + (ink[i] - c) * part));
    return `rgb(${mixed})`;
  }

  // Where things stand in the picture of a head.
  geometry(pen) {
    const { rows, columns } = this;
    const widest = (texts) => Math.ceil(
      Math.max(24, ...texts.map((text) => pen.measureText(text).width)));
    const left = widest(rows.map((query) => this.text(query))) + 26;
    const keys = widest(columns.map((column) => column.text)) + 10;
    const most = Math.max(rows.length, columns.length, 1);
    const fitting = Math.max(3, Math.min(30, Math.floor(420 / most)));
    const step = this.large ? Math.max(READABLE, fitting) : fitting;
    const [right, low] = [left + step * columns.length, 2 + step * rows.length];
    return { left, right, step, top: 2, low, width: Math.max(right, left + 80) + 4,
      height: low + keys + 20 };
  }

  write(pen, text, x, y, active) {
    pen.fillStyle = this.colours.text;
    pen.globalAlpha = active ? 1 : .78;
    pen.font = active ? `600 ${FONT}` : FONT;
    if (y < 0) sideways(pen, text, x, -y);
    else pen.fillText(text, x, y);
    pen.globalAlpha = 1;
  }

  drawCells(pen, { left, top, step }) {
    const { colours } = this, gap = step > 9 ? 1 : 0, size = step - gap;
    this.each((query, r, column, c) => {
      const [x, y] = [left + c * step, top + r * step];
      const shown = this.open(query, column);
      pen.fillStyle = shown ? this.shade(this.weight(query, column)) : colours.soft;
      pen.fillRect(x, y, size, size);
      if (shown) return;
      pen.beginPath();
      pen.moveTo(x, y + size);
      pen.lineTo(x + size, y);
      pen.strokeStyle = colours.line;
      pen.stroke();
    });
    pen.strokeStyle = colours.line;
    pen.strokeRect(left - .5, top - .5, this.columns.length * step + 1 - gap,
      this.rows.length * step + 1 - gap);
  }

  heatMap(pen, place) {
    const { left, right, top, low, step, height } = place;
    this.drawCells(pen, place);
    const fits = step >= READABLE; // where not all words fit, the one looked at is written
    pen.textAlign = "right";
    this.rows.forEach((query, r) => {
      const active = r === this.query, y = top + (r + .5) * step;
      if (fits || active) this.write(pen, this.text(query), left - 6, y, active);
    });
    this.columns.forEach((column, c) => {
      const active = c === this.key, x = left + (c + .5) * step;
      if (fits || active) this.write(pen, column.text, x, -(low + 6), active);
    });
    pen.textAlign = "center";
    pen.font = SMALL;
    pen.globalAlpha = .78;
    pen.fillText("key", (left + right) / 2, height - 8);
    sideways(pen, "query", 8, (top + low) / 2);
    pen.globalAlpha = 1;
    pen.strokeStyle = this.colours.text;
    const [x, y] = [left + this.key * step - .5, top + this.query * step - .5];
    if (this.query !== null) pen.strokeRect(left - .5, y, right - left, step);
    if (this.key !== null) pen.strokeRect(x, top - .5, step, low - top);
    pen.lineWidth = 2.5;
    if (this.pair && this.rows.length) pen.strokeRect(x, y, step, step);
  }

  strip(element, title, pieces) {
    element.replaceChildren(make("b", {}, ...title), ...pieces.map((piece) => {
      const word = token(piece.text);
      word.classList.toggle("at", piece.at);
      word.classList.toggle("rest", Boolean(piece.rest));
      word.classList.toggle("never", piece.value === null);
      if (piece.value) {
        word.style.background = this.shade(piece.value);
        if (piece.value > 550) word.style.color = `rgb(${this.colours.paper})`;
      }
      return word;
    }));
  }

  strips() {
    const [query, column] = [this.rows[this.query], this.columns[this.key]];
    const value = (q, c) => q === undefined || !c ? 0
      : this.open(q, c) ? this.weight(q, c) : null;
    const [who, whom] = [token(this.data.tokens[query]?.[1]), token(column?.name)];
    const asked = query === undefined ? ["the keys"] : ["what ", who, " attends to"];
    this.strip(this.reads, asked, this.columns.map((c, i) =>
      ({ text: c.text, rest: c.rest, at: i === this.key, value: value(query, c) })));
    const by = column ? ["who attends to ", whom] : ["the queries"];
    this.strip(this.readers, by, this.rows.map((q, i) =>
      ({ text: this.text(q), at: i === this.query, value: value(q, column) })));
  }

  // Where things stand in the picture of lines: queries on the left, keys on the right.
  linesGeometry(pen) {
    const widest = (texts) => Math.ceil(
      Math.max(24, ...texts.map((text) => pen.measureText(text).width))) + 10;
    const left = widest(this.rows.map((query) => this.text(query)));
    const step = Math.max(this.rows.length, this.columns.length) > 30 ? READABLE : 20;
    const [right, top] = [left + 200, 20];
    const low = top + step * Math.max(this.rows.length, this.columns.length, 1);
    return { left, right, step, top, low, height: low + 6,
      width: right + widest(this.columns.map((column) => column.text)) };
  }

  // A line from each query to each key, as strong as the weight, one colour a head.
  // Of a token that is looked at, only its own lines.
  lineMap(pen, place) {
    const { left, right, step, top } = place, at = (i) => top + (i + .5) * step;
    pen.lineWidth = 2;
    this.each((query, r, column, c) => {
      if (this.only === "query" && r !== this.query) return;
      if (this.only === "key" && c !== this.key) return;
      for (const head of this.drawn) {
        pen.globalAlpha = Math.min(this.weight(query, column, [this.head[0], head]),
          1000) / 1000;
        pen.strokeStyle = HEADS[head % HEADS.length];
        pen.beginPath();
        pen.moveTo(left, at(r));
        pen.lineTo(right, at(c));
        pen.stroke();
      }
    });
    pen.textAlign = "right";
    this.rows.forEach((query, r) =>
      this.write(pen, this.text(query), left - 6, at(r), r === this.query));
    pen.textAlign = "left";
    this.columns.forEach((column, c) =>
      this.write(pen, column.text, right + 6, at(c), c === this.key));
    pen.font = SMALL;
    pen.globalAlpha = .78;
    pen.fillText("key", right + 6, 8);
    pen.textAlign = "right";
    pen.fillText("query", left - 6, 8);
  }

  // The features of the query and the key that are looked at: {q, k, most, dim}.
  features() {
    const { data, head } = this, query = this.rows[this.query];
    const found = data.features.find(({ place }) => `${place}` === `${head}`);
    const column = this.columns[this.key];
    if (!found || query === undefined || !column || column.rest) return null;
    const real = (text, most) => decoded(text, data, found.dim).map((row) =>
      row.map((number) => (number / 500 - 1) * most));
    const [queries, keys] = [real(found.q, found.most[0]), real(found.k, found.most[1])];
    const score = (key) => sum(queries[query].map((x, i) => x * keys[key][i]))
      / Math.sqrt(found.dim);
    return { q: queries[query], k: keys[column.keys[0]], dim: found.dim, score,
      open: this.columns.filter((c) => !c.rest && this.open(query, c)) };
  }

  whyGeometry(pen) {
    const found = this.features();
    if (!found) return { width: 420, height: 30 };
    const names = ["product", ...this.columns.map((column) => column.text)];
    const left = 14 + Math.ceil(Math.max(...names.map((n) => pen.measureText(n).width)));
    const cell = Math.max(4, Math.min(16, Math.floor(480 / found.dim)));
    return { found, left, cell, width: Math.max(left + cell * found.dim + 4, left + 330),
      height: 130 + READABLE * 1.4 * found.open.length };
  }

  // How one weight arises: products of features, their sum, its place in the softmax.
  whyMap(pen, { found, left, cell }) {
    const text = (words, x, y, active) => this.write(pen, words, x, y, active);
    if (!found) return text("Not stored for this head, or for this token.", 4, 15);
    const product = found.q.map((x, i) => x * found.k[i]);
    const named = { query: found.q, key: found.k, product };
    Object.entries(named).forEach(([name, values], row) => {
      const most = Math.max(...values.map(Math.abs)) || 1;
      pen.textAlign = "right";
      text(name, left - 6, 12 + 22 * row);
      values.forEach((value, i) => {
        pen.fillStyle = this.shade(1000 * Math.abs(value) / most,
          value < 0 ? NEGATIVE : this.colours.ink);
        pen.fillRect(left + i * cell, 3 + 22 * row, cell - 1, 18);
      });
    });
    pen.textAlign = "left";
    const [total, root] = [sum(product).toFixed(2), `√${found.dim}`];
    const score = found.score(this.columns[this.key].keys[0]).toFixed(2);
    text(`sum of products ${total}, divided by ${root}: score ${score}`, left, 82, true);
    text("softmax of the scores of all keys", left, 106);
    found.open.forEach((column, i) => {
      const y = 126 + READABLE * 1.4 * i, active = column === this.columns[this.key];
      const weight = this.weight(this.rows[this.query], column);
      pen.textAlign = "right";
      text(column.text, left - 6, y, active);
      text(found.score(column.keys[0]).toFixed(2), left + 50, y, active);
      pen.fillStyle = this.shade(1000);
      pen.fillRect(left + 64, y - 6, 0.2 * weight, 11);
      pen.textAlign = "left";
      text(written(weight), left + 70 + 0.2 * weight, y, active);
    });
  }

  draw() {
    const { canvas, view } = this, [measure, picture] = PICTURES[view];
    this.enlarge.hidden = view !== "heat map" || READABLE * Math.max(this.rows.length,
      this.columns.length) <= 420;
    this.chosen.hidden = view !== "lines";
    canvas.classList.toggle("large", this.large && view === "heat map");
    this.place = this[measure](blank(canvas, 1, 1));
    this[picture](blank(canvas, this.place.width, this.place.height), this.place);
    this.strips();
    this.say();
  }

  // All heads, small: one row for each layer. What is not shown is left out here, too.
  drawMap() {
    const { map, colours, rows, columns } = this, layers = this.data.weights;
    const across = Math.max(...layers.map((layer) => layer.length));
    const tile = Math.max(16, Math.min(80, Math.floor(800 / across),
      Math.floor(640 / layers.length)));
    const low = layers.length * tile + 9, pen = blank(map, 22 + across * tile, low + 7);
    const dot = (tile - 4) / Math.max(rows.length, columns.length, 1);
    const open = this.openRuns();
    for (const place of this.heads) this.drawSmall(pen, place, tile, dot, open);
    pen.font = SMALL;
    pen.textAlign = "center";
    pen.fillStyle = colours.text;
    pen.globalAlpha = .78;
    this.data.layers.forEach((number, layer) =>
      pen.fillText(number, 9, (layer + .5) * tile));
    [...Array(across).keys()].forEach((i) =>
      pen.fillText(i, 22 + (i + .5) * tile, low));
    map.tile = tile;
  }

  // [row, first column, how many] of neighbours that the mask does not hide.
  openRuns() {
    const runs = [];
    this.each((query, r, column, c) => {
      if (!this.open(query, column)) return;
      const last = runs.at(-1);
      if (last?.[0] === r && last[1] + last[2] === c) last[2] += 1;
      else runs.push([r, c, 1]);
    });
    return runs;
  }

  drawSmall(pen, place, tile, dot, open) {
    const { colours } = this, [x, y] = [22 + place[1] * tile, place[0] * tile];
    pen.fillStyle = colours.soft; // what the mask hides stays grey
    pen.fillRect(x + 2, y + 2, dot * this.columns.length, dot * this.rows.length);
    pen.fillStyle = this.shade(0);
    for (const [r, c, length] of open) {
      pen.fillRect(x + 2 + c * dot, y + 2 + r * dot, length * dot, dot + .3);
    }
    // where several weights share a dot, the strongest is seen
    pen.globalCompositeOperation = colours.scheme === "dark" ? "lighten" : "darken";
    this.each((query, r, column, c) => {
      const value = this.weight(query, column, place);
      if (value < 10) return; // as pale as the paper
      pen.fillStyle = this.shade(value);
      pen.fillRect(x + 2 + c * dot, y + 2 + r * dot, Math.max(dot, 1), Math.max(dot, 1));
    });
    pen.globalCompositeOperation = "source-over";
    if (`${place}` !== `${this.head}`) return;
    pen.strokeStyle = `rgb(${colours.ink})`;
    pen.lineWidth = 2;
    pen.strokeRect(x + .5, y + .5, tile - 1, tile - 1);
  }

  // ---- hands: the mouse points, the arrow keys move
  lookAt(query, key, pair) {
    if (query === this.query && key === this.key && pair === this.pair) return;
    Object.assign(this, { query, key, pair });
    this.draw();
  }

  // A token of the sentence: as query and as key.
  lookAtToken(query, key) {
    const at = (i) => i < 0 ? null : i, { rows, columns } = this;
    if (this.view === "one weight") { // it shows a pair: the other token stays
      return this.lookAt(query ?? this.query ?? 0, key ?? this.key ?? 0, true);
    }
    if (key === null) {
      key = at(columns.findIndex((c) => !c.rest && c.keys[0] === rows[query]));
    } else if (!columns[key].rest) {
      query = at(rows.indexOf(columns[key].keys[0]));
    }
    this.lookAt(query, key, false);
  }

  point(event) {
    const { place } = this, [x, y] = inPicture(event, this.canvas, place.width);
    const row = Math.floor((y - place.top) / place.step);
    if (this.view === "one weight") return;
    if (this.view === "lines") return this.pointAtLines(row, x < (place.left + place.right) / 2);
    const column = Math.floor((x - place.left) / place.step);
    if (row in this.rows && column in this.columns) this.lookAt(row, column, true);
  }

  pointAtLines(row, onTheLeft) {
    if (!(row in (onTheLeft ? this.rows : this.columns))) return;
    this.only = onTheLeft ? "query" : "key";
    this.lookAtToken(onTheLeft ? row : null, onTheLeft ? null : row);
    this.draw();
  }

  // All lines again, or those of the query that the arrow keys move to.
  drawOnly(only) {
    this.only = only;
    if (this.view === "lines") this.draw();
  }

  makePanel() {
    const canvas = this.canvas = make("canvas");
    this.reads = make("p", { className: "strip reads" });
    this.readers = make("p", { className: "strip readers" });
    this.title = make("h4");
    canvas.onpointermove = canvas.onpointerdown = (event) => this.point(event);
    canvas.onpointerleave = () => this.drawOnly(null);
    const moved = (at, by, list) => at === null ? 0 : clamp(at + by, list.length);
    const toKey = (at, by = 0) => this.lookAtToken(null, moved(at, by, this.columns));
    const toQuery = (at, by = 0) => this.lookAtToken(moved(at, by, this.rows), null);
    focusable(canvas, "picture: up and down move the query, left and right the key",
      (down, right) => {
        if (!this.rows.length) return;
        this.lookAt(moved(this.query, down, this.rows),
          moved(this.key, right, this.columns), true);
        this.drawOnly(down ? "query" : "key");
      });
    this.listen(this.reads, "keys", toKey, () => this.key);
    this.listen(this.readers, "queries", toQuery, () => this.query);
    this.chosen = make("fieldset", { className: "chosen" });
    return make("section", { className: "panel" }, this.title, this.chosen,
      make("div", { className: "scroll" }, canvas),
      make("div", { className: "side" }, this.reads, this.readers), this.makeMap());
  }

  listen(strip, many, go, at) {
    focusable(strip, `${many}: left and right move`,
      (down, right) => this.rows.length && go(at(), down + right));
    strip.onfocus = () => this.rows.length && go(at());
    // not pointerover: new words under a mouse at rest would take the keyboard's place
    strip.onpointermove = strip.onpointerdown = (event) => {
      const i = [...strip.querySelectorAll(":scope > bdi")].indexOf(event.target);
      if (i >= 0) go(i);
    };
  }

  // Everything anew, after a change of what is shown.
  refresh() {
    this.layOut();
    this.title.replaceChildren(this.labelled(this.headName(this.head), this.head));
    this.draw();
    setTimeout(() => this.drawMap()); // it may take a moment
  }

  // The page is dark where it writes in a light colour.
  follow() {
    const { root, colours } = this, text = getComputedStyle(root).color;
    const [r, g, b] = rgb(text);
    const theme = .3 * r + .59 * g + .11 * b > 128 ? DARK : LIGHT;
    const paper = paperBehind(root) ?? theme.paper;
    if (colours.text === text && `${colours.paper}` === `${paper}`) return false;
    this.colours = { ...theme, text, paper };
    for (const name of ["scheme", "line", "soft", "ink"]) {
      root.style.setProperty(`--${name}`, theme[name]);
    }
    return true;
  }

  // ---- controls
  choice(name, texts) {
    const change = () => {
      this.choose(Number(this.layer.value), Number(this.headList.value));
      this.refresh();
    };
    const list = make("select", { onchange: change }, ...options(texts));
    list.setAttribute("aria-label", name); // the words around it would name its options
    return list;
  }

  // One box for each head of the layer, in the colour of its lines.
  chooseLines(layer) {
    this.drawn = new Set(this.data.weights[layer].keys());
    const boxes = this.data.weights[layer].map((_, i) => {
      const box = make("input", { type: "checkbox", checked: true, onchange: () => {
        this.drawn[box.checked ? "add" : "delete"](i);
        this.draw();
      } });
      box.style.accentColor = HEADS[i % HEADS.length];
      return [box, make("label", {}, box, `${i}`)];
    });
    const only = make("button", { type: "button", onclick: () => {
      boxes.forEach(([box], i) => { box.checked = i === this.head[1]; });
      this.drawn = new Set([this.head[1]]);
      this.draw();
    } }, "this head only");
    this.chosen.replaceChildren("lines of heads", ...boxes.map(([, label]) => label),
      only);
  }

  choose(layer, head) {
    if (layer !== this.head[0] || !this.drawn.size) this.chooseLines(layer);
    this.head = [layer, clamp(head, this.data.weights[layer].length)];
    this.layer.value = layer;
    this.headList.replaceChildren(...options(this.data.weights[layer].map((_, i) =>
      this.labelled(`${i}`, [layer, i]))));
    this.headList.value = this.head[1];
  }

  makeControls() {
    const { data } = this;
    this.layer = this.choice("layer", data.layers);
    this.headList = this.choice("head", []);
    const hide = make("fieldset", {}, "hide", ...data.hide.map((group, i) => {
      const box = make("input", { type: "checkbox", onchange: () => {
        this.hidden[box.checked ? "add" : "delete"](i);
        this.refresh();
      } });
      return make("label", {}, box, group.name);
    }));
    const large = make("input", { type: "checkbox", onchange: () => {
      this.large = large.checked;
      this.draw();
    } });
    this.enlarge = make("label", {}, large, "all words");
    const views = Object.keys(PICTURES).slice(0, data.features.length ? 3 : 2);
    const view = make("select", { onchange: () => {
      this.view = views[view.value];
      this.draw();
    } }, ...options(views));
    view.setAttribute("aria-label", "view");
    return make("form", { onsubmit: () => false },
      make("label", { hidden: data.weights.length === 1 }, "layer", this.layer),
      make("label", {}, "head", this.headList),
      make("label", {}, "view", view), hide, this.enlarge);
  }

  makeMap() {
    const map = this.map = make("canvas"), { data } = this;
    const go = (layer, head) => {
      this.choose(clamp(layer, data.weights.length), head);
      this.refresh();
      map.focus();
    };
    focusable(map, "all heads: arrow keys choose one", (down, right) =>
      this.rows.length && go(this.head[0] + down, this.head[1] + right));
    map.onclick = (event) => {
      const [x, y] = inPicture(event, map, parseFloat(map.style.width));
      const [layer, head] = [Math.floor(y / map.tile), Math.floor((x - 22) / map.tile)];
      if (data.weights[layer]?.[head] !== undefined) go(layer, head);
    };
    return make("div", { className: "map", hidden: this.heads.length === 1 },
      make("b", {}, "all heads: layers down, heads across"), map);
  }

  makePage() {
    const { root, data } = this;
    this.said = make("div", { className: "said" });
    this.said.setAttribute("aria-live", "polite");
    const legend = make("div", { className: "legend" },
      make("span", {}, "weight 0", make("i", { className: "scale" }), "1"),
      make("span", { hidden: !data.mask },
        make("i", { className: "hatch" }), "hidden by the mask"),
      make("span", {}, "Point, or press Tab and the arrow keys. Rounded to 0.001."));
    root.attachShadow({ mode: "open" }).append(make("style", {}, data.css),
      make("h3", {}, data.title), this.makeControls(), this.said,
      make("div", { className: "panels" }, this.makePanel()), legend);
    // What is typed here is not meant for the notebook, where two d delete a cell.
    root.setAttribute("data-lm-suppress-shortcuts", "true"); // JupyterLab listens first
    root.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
    });
    const repaint = () => this.follow() && (this.draw(), this.drawMap());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    root.addEventListener("pointerenter", repaint);
    root.addEventListener("focusin", repaint);
  }
}
