// What is shown: the window in time, the rows, the filters, the selection; and the same as text in the page's address,
// so that a link leads back to it.

const view = {
  from: 0, to: 1,        // nanoseconds, at the chart's left and right edge
  top: 0,                // pixels of rows above the chart's upper edge
  rowHeight: 0,          // pixels of an SM; 0: all SMs fit
  selection: null,       // {track, a, b}, see partAround
  opcodes: new Set(),    // those to show; empty: all
  layer: -1, token: -1,  // -1: all
  sms: "", roles: new Set(), search: "",
  path: true, patterns: true, theme: "",
};

// Made from the filters by updateRows and updateMatches.
const rows = {sms: [], rowOf: null, roles: [], match: null, version: 0};

// Pixels of the chart: names of rows on the left, beside them the ranks where there are several, which makes the gutter
// wider; axis and critical path on top.
const RANK = 15, AXIS = 22, PATH = 20, HEAD = AXIS + PATH;
let GUTTER = 74;
const size = {width: 300, height: 300};

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

// "0-7, 1:12": SM 0 to 7 of every rank, and SM 12 of rank 1.
function parseSms(text) {
  const wanted = new Set();
  for (const piece of text.split(/[\s,;]+/)) {
    const range = /^(?:(\d+):)?(\d+)(?:\s*-\s*(\d+))?$/.exec(piece);
    if (!range) continue;
    const last = Math.min(Number(range[3] ?? range[2]), trace.smsOfRank - 1);
    for (let rank = 0; rank < trace.ranks; rank++) {
      if (range[1] !== undefined && Number(range[1]) !== rank) continue;
      for (let sm = Number(range[2]); sm <= last; sm++) wanted.add(rank * trace.smsOfRank + sm);
    }
  }
  return wanted;
}

function updateRows() {
  const wanted = parseSms(view.sms);
  rows.version++;
  rows.sms = [];
  for (let sm = 0; sm < trace.sms; sm++) {
    let records = 0;
    for (let r = 0; r < trace.roleCount; r++) records += trace.count[sm * trace.roleCount + r];
    if (records > 0 && (wanted.size === 0 || wanted.has(sm))) rows.sms.push(sm);
  }
  rows.rowOf = new Int32Array(trace.sms).fill(-1);
  rows.sms.forEach((sm, row) => rows.rowOf[sm] = row);
  rows.roles =
      trace.roles.map((_, r) => r).filter((r) => trace.rolesSeen[r] && (view.roles.size === 0 || view.roles.has(r)));
}

// Per instruction, whether the filters let it through.
function updateMatches() {
  const p = trace.program;
  rows.match = new Uint8Array(p.count);
  for (let i = 0; i < p.count; i++) {
    rows.match[i] =
        (view.opcodes.size === 0 || view.opcodes.has(p.opcode[i])) && (view.layer < 0 || p.layer[i] === view.layer) ?
        1 :
        0;
  }
}

function plotWidth() {
  return Math.max(size.width - GUTTER, 10);
}

function plotHeight() {
  return Math.max(size.height - HEAD, 10);
}

function rowHeight() {
  return view.rowHeight > 0 ? view.rowHeight : Math.max(plotHeight() / Math.max(rows.sms.length, 1), 1);
}

function rowGap() {
  return rowHeight() >= 14 ? 3 : rowHeight() >= 5 ? 1 : 0;
}

// Where rows are too low for all roles, the consumers stay longest: they show what the SM waits for.
function shownRoles() {
  const room = Math.max(Math.floor((rowHeight() - rowGap()) / 3), 1);
  const order = [CONSUMER, LOADER, STORER, 3].filter((r) => rows.roles.includes(r)).slice(0, room);
  return rows.roles.filter((r) => order.includes(r));
}

function xOf(time) {
  return GUTTER + ((time - view.from) / (view.to - view.from)) * plotWidth();
}

function timeOf(x) {
  return view.from + ((x - GUTTER) / plotWidth()) * (view.to - view.from);
}

// {y, height} of a track's lane, from the canvas' upper edge; null: it is filtered out. A role without a lane stands
// for its SM.
function laneOf(track) {
  const row = rows.rowOf[Math.floor(track / trace.roleCount)];
  if (row < 0) return null;
  const roles = shownRoles(), lane = Math.max(roles.indexOf(track % trace.roleCount), 0);
  const height = (rowHeight() - rowGap()) / Math.max(roles.length, 1);
  return {y: HEAD + row * rowHeight() - view.top + lane * height, height};
}

function trackAt(y) {
  const roles = shownRoles(), row = Math.floor((y - HEAD + view.top) / rowHeight());
  if (y < HEAD || row < 0 || row >= rows.sms.length || roles.length === 0) return -1;
  const inside = (y - HEAD + view.top - row * rowHeight()) / (rowHeight() - rowGap());
  return rows.sms[row] * trace.roleCount + roles[clamp(Math.floor(inside * roles.length), 0, roles.length - 1)];
}

// Keeps the window inside of what was recorded, with a little air.
function setWindow(from, to) {
  const whole = trace.end - trace.begin, length = clamp(to - from, 20, whole * 1.04);
  const middle = (from + to) / 2, air = whole * 0.02;
  view.from = clamp(middle - length / 2, trace.begin - air, trace.end + air - length);
  view.to = view.from + length;
}

function setTop(top) {
  view.top = clamp(top, 0, Math.max(rows.sms.length * rowHeight() - plotHeight(), 0));
}

// Moves the window by whole pixels of the screen where it can: that costs less than drawing everything anew.
function pan(pixels) {
  const ratio = devicePixelRatio || 1, by = (Math.round(pixels * ratio) / ratio / plotWidth()) * (view.to - view.from);
  setWindow(view.from + by, view.to + by);
}

function zoomTime(factor, x) {
  const time = timeOf(x);
  setWindow(time - (time - view.from) * factor, time + (view.to - time) * factor);
}

function zoomRows(factor, y) {
  const before = rowHeight(), fit = plotHeight() / Math.max(rows.sms.length, 1);
  const height = clamp(before * factor, Math.max(fit, 1), 200), under = (y - HEAD + view.top) / before;
  view.rowHeight = height <= fit * 1.01 ? 0 : height;
  setTop(under * rowHeight() - (y - HEAD));
}

function showWhole() {
  view.rowHeight = 0;
  view.top = 0;
  setWindow(trace.begin, trace.end);
}

function showStep(step) {
  if (step >= trace.steps) return;
  const a = trace.stepStart[step], b = trace.stepStart[step + 1], air = (b - a) * 0.01;
  setWindow(a - air, b + air);
}

// Scrolls and zooms so that a part can be seen.
function reveal(part) {
  const a = trace.start[part.a], b = trace.start[part.b], span = view.to - view.from;
  const least = Math.max(b - a, 1) * 1.5, most = Math.max((b - a) * 200, 4000);
  if (a < view.from || b > view.to || span < least || span > most) {
    const length = clamp(span, Math.max(least, (b - a) * 4), Math.min(most, Math.max((b - a) * 40, 4000)));
    setWindow((a + b) / 2 - length / 2, (a + b) / 2 + length / 2);
  }
  const row = rows.rowOf[Math.floor(part.track / trace.roleCount)];
  const y = row * rowHeight() - view.top;
  if (row >= 0 && (y < 0 || y + rowHeight() > plotHeight())) setTop((row + 0.5) * rowHeight() - plotHeight() / 2);
}

// The address.

function stateText() {
  const fields = [`t=${us(view.from).toFixed(3)},${us(view.to).toFixed(3)}`];
  const add = (key, value) => value !== "" && fields.push(key + "=" + encodeURIComponent(value));
  add("h", view.rowHeight > 0 ? view.rowHeight.toFixed(1) : "");
  add("y", view.top > 0 ? view.top.toFixed(0) : "");
  if (view.selection) add("sel", selectionText(view.selection));
  add("op", [...view.opcodes].map((o) => trace.opcodes[o].name).join(","));
  add("layer", view.layer < 0 ? "" : String(view.layer));
  add("token", view.token < 0 ? "" : String(view.token + trace.summary.trace.first_step));
  add("sm", view.sms);
  add("role", [...view.roles].map((r) => trace.roles[r]).join(","));
  add("q", view.search);
  add("path", view.path ? "" : "0");
  add("patterns", view.patterns ? "" : "0");
  add("theme", view.theme);
  return "#" + fields.join("&");
}

// "SM.role.uid.step", or "SM.role.@nanoseconds" where no instruction is at hand.
function selectionText(part) {
  const role = part.track % trace.roleCount, sm = (part.track - role) / trace.roleCount,
        instruction = trace.instruction[part.a];
  if (isBetween(part.a)) return `${sm}.${role}.@${trace.start[part.a]}`;
  return `${sm}.${role}.${trace.program.uid[instruction]}.${trace.step[part.a]}`;
}

function selectionFrom(text) {
  const [sm, role, uid, step] = text.split("."), track = Number(sm) * trace.roleCount + Number(role);
  if (!(track >= 0 && track < trace.first.length) || uid === undefined) return null;
  if (uid.startsWith("@")) {
    const i = intervalAt(track, Number(uid.slice(1)));
    return i < 0 ? null : partAround(track, i);
  }
  const instruction = trace.program.byUid.get(Number(uid));
  return instruction === undefined ? null : partOf(instruction, Number(step), Number(role));
}

function numberOr(text, otherwise) {
  const value = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(value) ? value : otherwise;
}

function readState(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, "")), names = (key) => (fields.get(key) ?? "").split(",");
  const first = trace.summary.trace.first_step;
  view.opcodes =
      new Set(trace.opcodes.map((o, i) => (i > 0 && names("op").includes(o.name) ? i : 0)).filter((i) => i > 0));
  view.roles = new Set(trace.roles.map((_, i) => i).filter((i) => names("role").includes(trace.roles[i])));
  view.layer = Math.max(numberOr(fields.get("layer"), -1), -1);
  const token = numberOr(fields.get("token"), -1) - first;
  view.token = token >= 0 && token < trace.steps ? token : -1;
  view.sms = fields.get("sm") ?? "";
  view.search = fields.get("q") ?? "";
  view.path = fields.get("path") !== "0";
  view.patterns = fields.get("patterns") !== "0";
  view.theme = ["light", "dark"].includes(fields.get("theme")) ? fields.get("theme") : "";
  view.selection = fields.has("sel") ? selectionFrom(fields.get("sel")) : null;
  updateRows();
  updateMatches();
  view.rowHeight = clamp(numberOr(fields.get("h"), 0), 0, 200);
  setTop(numberOr(fields.get("y"), 0));
  const [from, to] = names("t").map((t) => numberOr(t, NaN) * 1000);
  if (from < to) {
    setWindow(from, to);
  } else if (view.selection) {
    reveal(view.selection);
  } else if (trace.steps > 0) {
    showStep(clamp(trace.summary.critical_path.step - first, 0, trace.steps - 1));
  } else {
    showWhole();
  }
}

let saving = 0;

function saveState() {
  clearTimeout(saving);
  saving = setTimeout(() => {
    const text = stateText();
    try {
      if (text !== location.hash) history.replaceState(null, "", text);
    } catch {
      // Some browsers refuse to do this often; the next change comes through.
    }
  }, 150);
}
