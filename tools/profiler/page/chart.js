// One frame: overview, axis, critical path, lanes, and what is drawn over them.

const canvas = document.getElementById("chart"), overview = document.getElementById("overview");
const MOST_LABELS = 600, MOST_ARROWS = 256;
let pixels = null; // of the lanes, reused while the size stays

function fitCanvas(element) {
  const box = element.getBoundingClientRect();
  const ratio = Math.min(devicePixelRatio || 1, 4096 / Math.max(box.width, 1));
  const width = Math.max(Math.round(box.width * ratio), 1), height = Math.max(Math.round(box.height * ratio), 1);
  if (element.width !== width || element.height !== height) {
    element.width = width;
    element.height = height;
  }
  const context = element.getContext("2d", {alpha: false});
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = "middle";
  return {context, ratio, width: box.width, height: box.height};
}

// A round number of nanoseconds, so that ticks are 60 pixels apart or more.
function tickLength() {
  const wanted = (view.to - view.from) / (plotWidth() / 60);
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((f) => f * power).find((length) => length >= wanted);
}

function drawAxis(c) {
  const tick = tickLength(), digits = Math.max(0, 3 - Math.floor(Math.log10(tick)));
  c.fillStyle = colours.panel;
  c.fillRect(0, 0, size.width, AXIS);
  c.textAlign = "left";
  c.fillStyle = colours.soft;
  c.fillText("us", 6, AXIS / 2);
  for (let t = Math.ceil(view.from / tick) * tick; t <= view.to; t += tick) {
    const x = Math.round(xOf(t)) + 0.5;
    c.fillStyle = colours.line;
    c.fillRect(x, AXIS - 6, 1, 6);
    c.fillStyle = colours.soft;
    if (x > GUTTER - 8) c.fillText(us(t).toFixed(Math.min(digits, 3)), x + 3, AXIS / 2);
  }
}

function drawStepLines(c) {
  c.fillStyle = colours.soft;
  for (let s = 1; s < trace.steps; s++) {
    const x = Math.round(xOf(trace.stepStart[s]));
    if (x > GUTTER && x < size.width) c.fillRect(x, 0, 1, size.height);
  }
}

// The index of the first part of a path that ends after the window's start.
function firstPart(path) {
  let low = 0, high = path.count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (path.start[middle] + path.length[middle] <= view.from) low = middle + 1;
    else high = middle;
  }
  return low;
}

function toneOf(instruction) {
  return instruction < 0 ? colours.hand : PALETTE[trace.program.opcode[instruction] % PALETTE.length];
}

function inkOn(hex) {
  const [r, g, b] = rgb(hex);
  return r * 0.3 + g * 0.59 + b * 0.11 > 125 ? "#000000" : "#ffffff";
}

function drawPathStrip(c) {
  c.fillStyle = colours.panel;
  c.fillRect(0, AXIS, size.width, PATH);
  c.fillStyle = colours.soft;
  c.textAlign = "left";
  c.fillText("crit. path", 2, AXIS + PATH / 2);
  for (const path of trace.paths.values()) {
    for (let i = firstPart(path); i < path.count && path.start[i] < view.to; i++) {
      const a = Math.max(xOf(path.start[i]), GUTTER), b = Math.min(xOf(path.start[i] + path.length[i]), size.width);
      if (b - a < 0.1) continue;
      const instruction = path.instruction[i], works = trace.activities[path.activity[i]].kind === "work";
      c.fillStyle = works ? toneOf(instruction) : colours.wait;
      c.fillRect(a, works ? AXIS + 2 : AXIS + 8, Math.max(b - a - (b - a > 3 ? 0.5 : 0), 0.7), works ? PATH - 4 : 4);
      if (works && b - a > (trace.ranks > 1 ? 86 : 46) && instruction >= 0) {
        c.fillStyle = inkOn(toneOf(instruction));
        c.fillText(smLabel(Math.floor(path.track[i] / trace.roleCount)), a + 3, AXIS + PATH / 2);
      }
    }
  }
}

// What the lanes looked like in the last frame.
const drawn = {key: "", from: 0, span: 0};

// By how many columns the lanes have moved since the last frame, if they have only moved; otherwise NaN.
function movedColumns(key, width) {
  const span = view.to - view.from, columns = ((view.from - drawn.from) * width) / span, whole = Math.round(columns);
  const moved = drawn.key === key && Math.abs(span - drawn.span) < span * 1e-9 && Math.abs(columns - whole) < 0.02 &&
      Math.abs(whole) < width / 2;
  Object.assign(drawn, {key, span, from: moved ? drawn.from + (whole * span) / width : view.from});
  return moved ? whole : NaN;
}

// Moving has left something in these columns between the rows and below them.
function clearBetween(words, width, height, low, high, ratio) {
  const last = rows.sms.length - 1;
  for (let r = Math.max(Math.floor(view.top / rowHeight()), 0); r <= last; r++) {
    const end = r === last ? height : Math.round(((r + 1) * rowHeight() - view.top) * ratio);
    for (let y = Math.max(Math.round(((r + 1) * rowHeight() - rowGap() - view.top) * ratio), 0);
         y < Math.min(end, height); y++) {
      words.fill(colours.paperWord, y * width + low, y * width + high);
    }
  }
}

function drawLanes(c, ratio) {
  const width = Math.round(plotWidth() * ratio), height = Math.round(plotHeight() * ratio), roles = shownRoles();
  if (!pixels || pixels.width !== width || pixels.height !== height) {
    pixels = new ImageData(width, height);
    drawn.key = "";
  }
  const words = new Uint32Array(pixels.data.buffer);
  const moved = movedColumns(
      [view.top, rowHeight(), roles, ratio, rows.version, colours.version, view.token, view.patterns].join(), width);
  let low = 0, high = width;
  if (Number.isNaN(moved)) {
    words.fill(colours.paperWord);
  } else if (moved > 0) {
    words.copyWithin(0, moved);
    low = width - moved;
  } else {
    words.copyWithin(-moved, 0);
    high = -moved;
  }
  if (low < high) {
    prepareRaster(width, low, high, ratio);
    for (let r = Math.max(Math.floor(view.top / rowHeight()), 0); r < rows.sms.length; r++) {
      const y = (r * rowHeight() - view.top) * ratio;
      if (y >= height) break;
      const lane = ((rowHeight() - rowGap()) * ratio) / Math.max(roles.length, 1);
      roles.forEach((role, k) => {
        const top = Math.round(y + k * lane), bottom = Math.max(Math.round(y + (k + 1) * lane), top + 1);
        if (bottom > 0 && top < height)
          rasterLane(rows.sms[r] * trace.roleCount + role, words, top, bottom, height, ratio);
      });
    }
    if (!Number.isNaN(moved)) clearBetween(words, width, height, low, high, ratio);
  }
  c.putImageData(pixels, Math.round(GUTTER * ratio), Math.round(HEAD * ratio));
}

function drawGutter(c) {
  c.fillStyle = colours.panel;
  c.fillRect(0, HEAD, GUTTER, plotHeight());
  const height = rowHeight(), roles = shownRoles(),
        every = [1, 2, 4, 8, 16, 32, 64, 128].find((n) => n * height >= 13) ?? 256;
  const lane = (height - rowGap()) / Math.max(roles.length, 1);
  c.save();
  c.beginPath();
  c.rect(0, HEAD, GUTTER, plotHeight());
  c.clip();
  c.textAlign = "left";
  for (let r = Math.max(Math.floor(view.top / height), 0); r < rows.sms.length; r++) {
    const y = HEAD + r * height - view.top;
    if (y > size.height) break;
    c.fillStyle = colours.ink;
    const named = lane >= 11 && roles.length > 1;
    if (r % every === 0 && y + Math.max(height, 13) >= HEAD + 13)
      c.fillText(
          "SM " + rows.sms[r] % trace.smsOfRank, trace.ranks > 1 ? RANK + 3 : 3,
          Math.max(named ? y + lane / 2 : y + (height - rowGap()) / 2, HEAD + 6));
    if (named) {
      c.fillStyle = colours.soft;
      c.textAlign = "right";
      roles.forEach((role, k) => c.fillText(trace.roles[role].slice(0, 4), GUTTER - 3, y + (k + 0.5) * lane));
      c.textAlign = "left";
    }
  }
  c.restore();
}

// A band beside the rows of each rank, with its name, and a line where the next one begins.
function drawRanks(c) {
  c.textAlign = "center";
  for (let r = 0, end = 0; r < rows.sms.length; r = end) {
    const rank = rankOf(rows.sms[r]), place = (row) => clamp(HEAD + row * rowHeight() - view.top, HEAD, size.height);
    while (end < rows.sms.length && rankOf(rows.sms[end]) === rank) end++;
    const a = place(r), tall = place(end) - a;
    c.fillStyle = colours.line;
    c.fillRect(0, a + 1, RANK, tall - 1);
    c.fillStyle = colours.soft;
    if (a > HEAD) c.fillRect(0, a, size.width, 1);
    if (tall < 12) continue;
    c.save();
    c.translate(RANK / 2, a + tall / 2);
    c.rotate(-Math.PI / 2);
    c.fillStyle = colours.ink;
    c.fillText(tall < 44 ? String(rank) : "rank " + rank, 0, 0);
    c.restore();
  }
}

// Names on bars that have room for them.
function drawLabels(c) {
  const roles = shownRoles(), lane = (rowHeight() - rowGap()) / Math.max(roles.length, 1),
        scale = plotWidth() / (view.to - view.from);
  if (lane < 11) return;
  let labels = 0;
  c.textAlign = "left";
  for (let r = Math.max(Math.floor(view.top / rowHeight()), 0); r < rows.sms.length && labels < MOST_LABELS; r++) {
    const y = HEAD + r * rowHeight() - view.top;
    if (y > size.height) break;
    roles.forEach((role, k) => {
      const track = rows.sms[r] * trace.roleCount + role, last = trace.first[track] + trace.count[track];
      const middle = y + (k + 0.5) * lane;
      if (middle < HEAD + 4) return;
      let i = Math.max(intervalAt(track, view.from), trace.first[track]);
      for (; i < last && trace.start[i] < view.to && labels < MOST_LABELS; i++) {
        if ((trace.start[i + 1] - trace.start[i]) * scale < 28 || trace.instruction[i] < 0) continue;
        if (trace.activities[trace.activity[i]].kind !== "work" || !rows.match[trace.instruction[i]]) continue;
        const a = Math.max(xOf(trace.start[i]), GUTTER), b = Math.min(xOf(trace.start[i + 1]), size.width);
        const opcode = trace.program.opcode[trace.instruction[i]], layer = trace.program.layer[trace.instruction[i]];
        const name = trace.opcodes[opcode].name,
              text = b - a > 6.2 * (name.length + 4) && layer >= 0 ? name + " " + layer : name;
        if (b - a < 6.2 * text.length + 4) continue;
        const tone = PALETTE[opcode % PALETTE.length];
        c.fillStyle = tone;
        c.fillRect(a + 1, middle - 6, 6.4 * text.length + 2, 12);
        c.fillStyle = inkOn(tone);
        c.fillText(text, a + 3, middle);
        labels++;
      }
    });
  }
}

// A line on a halo, so that it shows on any colour.
function stroke(c, colour, width) {
  c.lineJoin = "round";
  c.strokeStyle = colours.halo;
  c.lineWidth = width + 2;
  c.stroke();
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.stroke();
}

function drawPath(c) {
  for (const path of trace.paths.values()) {
    let any = false, lastX = 0, lastY = 0;
    c.beginPath();
    for (let i = Math.max(firstPart(path) - 1, 0); i < path.count && path.start[i] < view.to; i++) {
      const lane = laneOf(path.track[i]);
      if (!lane) continue;
      const a = xOf(path.start[i]), b = xOf(path.start[i] + path.length[i]), y = lane.y + lane.height / 2;
      if (any && b - lastX < 0.5 && Math.abs(y - lastY) < 0.5) continue;
      if (any) c.lineTo(a, y);
      else c.moveTo(a, y);
      c.lineTo(b, y);
      any = true;
      lastX = b;
      lastY = y;
    }
    if (any) stroke(c, colours.path, 1.5);
  }
}

function drawArrow(c, fromX, fromY, toX, toY, strong) {
  const angle = Math.atan2(toY - fromY, toX - fromX), head = strong ? 8 : 5;
  c.beginPath();
  c.moveTo(fromX, fromY);
  c.lineTo(toX, toY);
  c.moveTo(toX - head * Math.cos(angle - 0.4), toY - head * Math.sin(angle - 0.4));
  c.lineTo(toX, toY);
  c.lineTo(toX - head * Math.cos(angle + 0.4), toY - head * Math.sin(angle + 0.4));
  if (strong) {
    stroke(c, colours.accent, 2);
  } else {
    c.strokeStyle = colours.accent;
    c.globalAlpha = 0.35;
    c.lineWidth = 1;
    c.stroke();
    c.globalAlpha = 1;
  }
}

function arrowTo(c, source, i, track, strong) {
  const a = laneOf(source.track), b = laneOf(track);
  if (!a || !b) return;
  drawArrow(
      c, xOf(Math.min(trace.start[source.b], trace.start[i + 1])), a.y + a.height / 2, xOf(trace.start[i + 1]),
      b.y + b.height / 2, strong);
}

// From whoever published what the selected part waited for, to the end of its waits; the last one, which ended the
// wait, is drawn strong.
function drawArrows(c) {
  const part = view.selection;
  const key = part.track + ":" + part.a;
  if (drawArrows.key !== key) {
    drawArrows.key = key;
    drawArrows.list = [];
    for (let i = part.a; i < part.b; i++) {
      if (trace.activities[trace.activity[i]].kind !== "wait") continue;
      for (const p of publishersOf(i).slice(0, MOST_ARROWS)) {
        const source = p === trace.publisher[i] ? null : publishingPart(p, trace.step[i]);
        if (source) drawArrows.list.push({source, i, strong: false});
      }
      const last = trace.publisher[i] >= 0 ? publishingPart(trace.publisher[i], trace.step[i]) : null;
      if (last) drawArrows.list.push({source: last, i, strong: true});
    }
    drawArrows.list.sort((a, b) => a.strong - b.strong);
  }
  for (const arrow of drawArrows.list) arrowTo(c, arrow.source, arrow.i, part.track, arrow.strong);
}

function drawSelection(c) {
  const part = view.selection, lane = laneOf(part.track);
  if (!lane) return;
  const a = xOf(trace.start[part.a]), b = xOf(trace.start[part.b]);
  c.beginPath();
  c.rect(a - 1, lane.y - 1, Math.max(b - a, 2) + 2, lane.height + 2);
  stroke(c, colours.select, 2);
}

function drawChart() {
  const {context: c, ratio, width, height} = fitCanvas(canvas);
  size.width = width;
  size.height = height;
  setTop(view.top);
  drawLanes(c, ratio);
  c.save();
  c.beginPath();
  c.rect(GUTTER, HEAD, plotWidth(), plotHeight());
  c.clip();
  if (view.path && !trace.serial) drawPath(c); // on one thread it is everything
  drawLabels(c);
  if (view.selection) {
    drawArrows(c);
    drawSelection(c);
  }
  c.restore();
  drawAxis(c);
  drawPathStrip(c);
  drawGutter(c);
  if (trace.ranks > 1) drawRanks(c);
  drawStepLines(c);
}

// How the consumers spend the time, over all of it: added up once, in bins.
const BINS = 1200;
let bins = null;

function fillBins() {
  bins = {
    work: new Float64Array(BINS + 1),
    feed: new Float64Array(BINS + 1),
    wait: new Float64Array(BINS + 1),
    most: 1e-9
  };
  const scale = BINS / (trace.end - trace.begin);
  const of = trace.activities.map(
      (a) =>
          (a.kind === "work"     ? bins.work :
               a.kind === "feed" ? bins.feed :
               a.kind === "idle" ? null :
                                   bins.wait));
  for (let t = CONSUMER; t < trace.first.length; t += trace.roleCount) {
    for (let i = trace.first[t], last = i + trace.count[t]; i < last; i++) {
      const bin = of[trace.activity[i]];
      if (!bin) continue;
      const a = (trace.start[i] - trace.begin) * scale, b = (trace.start[i + 1] - trace.begin) * scale;
      for (let x = a | 0; x <= (b | 0); x++) bin[x] += Math.min(b, x + 1) - Math.max(a, x);
    }
  }
  for (let x = 0; x < BINS; x++) bins.most = Math.max(bins.most, bins.work[x] + bins.feed[x] + bins.wait[x]);
}

function drawOverview() {
  const {context: c, width, height} = fitCanvas(overview);
  if (!bins) fillBins();
  c.fillStyle = colours.panel;
  c.fillRect(0, 0, width, height);
  const scale = (width - GUTTER) / (trace.end - trace.begin), x = (time) => GUTTER + (time - trace.begin) * scale;
  const barWidth = (width - GUTTER) / BINS;
  for (let b = 0; b < BINS; b++) {
    let y = height;
    for (const [kind, colour] of [["work", colours.accent], ["feed", colours.wait], ["wait", colours.hand]]) {
      const tall = ((height - 14) * bins[kind][b]) / bins.most;
      c.fillStyle = colour;
      c.fillRect(GUTTER + b * barWidth, y - tall, barWidth + 0.3, tall);
      y -= tall;
    }
  }
  c.textAlign = "left";
  c.fillStyle = colours.soft;
  c.fillText("all SMs", 3, 8);
  for (let s = 0; s < trace.steps; s++) {
    const at = x(trace.stepStart[s]);
    c.fillRect(at, 0, 1, height);
    if (s % Math.ceil((trace.steps * 66) / Math.max(width - GUTTER, 66)) === 0) c.fillText(stepLabel(s), at + 3, 8);
  }
  c.fillStyle = colours.paper;
  c.globalAlpha = 0.6;
  const a = clamp(x(view.from), GUTTER, width), b = clamp(x(view.to), GUTTER, width);
  c.fillRect(GUTTER, 13, a - GUTTER, height);
  c.fillRect(b, 13, width - b, height);
  c.globalAlpha = 1;
  c.strokeStyle = colours.select;
  c.lineWidth = 1.5;
  c.strokeRect(a, 13.5, Math.max(b - a, 2), height - 14.5);
}

let wanted = 0;

// Draws once before the next frame, however often it is asked for.
function redraw() {
  saveState();
  if (wanted) return;
  wanted = requestAnimationFrame(() => {
    wanted = 0;
    drawChart();
    drawOverview();
  });
}
