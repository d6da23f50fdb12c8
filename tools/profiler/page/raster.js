// Lanes as pixels. A lane's intervals are added up per pixel column, so that a frame costs what is visible and not
// more: work has the colour of its opcode over the lane's whole height, as strong as its share of the column; waiting
// is a thin line in the middle.

// Okabe and Ito's colours, which stay apart without colour vision, and some more; by opcode.
const PALETTE = [
  "#888888", "#0072b2", "#d55e00", "#f0e442", "#009e73", "#8f6fc0", "#cc79a7", "#e69f00", "#56b4e9", "#9a6b3f",
  "#7f9f2f", "#b0413e", "#4f7f8f", "#c9a9e0", "#5f5f9f", "#a0a060"
];

// Patterns of 4 x 4 cells by opcode, a bit a cell: strokes that are drawn darker.
const PATTERNS = [
  0x0000, 0x0000, 0x8421, 0x0000, 0x1248, 0x5a5a, 0x000f, 0x0202, 0x1111, 0xa5a5, 0x0f0f, 0x3333, 0x1842, 0x9009,
  0x6006, 0x4444
];

// Lines for waiting, by kind of activity: the part of four pixels that is drawn.
const KINDS = ["work", "wait", "feed", "ring", "hand", "idle"];
const DASHES = [0b0000, 0b1111, 0b0111, 0b0001, 0b0101, 0b0000];

const colours = {version: 0};

function rgb(text) {
  const value = parseInt(text.trim().slice(1), 16);
  return [value >> 16 & 255, value >> 8 & 255, value & 255];
}

// As ImageData's 32-bit words on little-endian machines, which all browsers run on.
function word([r, g, b]) {
  return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
}

function mix(a, b, share) {
  return a.map((value, i) => Math.round(value + (b[i] - value) * share));
}

function updateColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name
           of ["paper", "ink", "soft", "line", "accent", "wait", "hand", "dim", "select", "path", "halo", "panel"]) {
    colours[name] = style.getPropertyValue("--" + name).trim();
  }
  colours.version++;
  const paper = rgb(colours.paper), dim = rgb(colours.dim);
  colours.paperWord = word(paper);
  // Class 0 is nothing, class 1 what the filters hold back, class k + 1 opcode k; 16 strengths each.
  const tones = [paper, dim, ...trace.opcodes.slice(1).map((_, k) => rgb(PALETTE[(k + 1) % PALETTE.length]))];
  colours.tones = new Uint32Array(tones.length * 16);
  colours.strokes = new Uint32Array(tones.length);
  tones.forEach((tone, k) => {
    for (let s = 0; s < 16; s++)
      colours.tones[k * 16 + s] = word(mix(paper, tone, k === 0 ? 0 : 0.12 + 0.88 * (s / 15)));
    colours.strokes[k] = word(mix(tone, [0, 0, 0], 0.3));
  });
  // Waiting, by kind; idle is not drawn.
  colours.waits =
      new Uint32Array(KINDS.map((kind) => word(rgb(kind === "wait" || kind === "feed" ? colours.wait : colours.hand))));
  colours.faintWaits = new Uint32Array(KINDS.map((_, k) => word(mix(paper, rgb(colours.hand), k === 0 ? 0 : 0.35))));
}

const raster = {width: 0};

// For columns low to high - 1 of a plot of that many columns.
function prepareRaster(width, low, high, ratio) {
  if (raster.width !== width) {
    raster.width = width;
    raster.work = new Float32Array(width); // share of the column, and of the longest piece of it
    raster.longest = new Float32Array(width);
    raster.tone = new Uint8Array(width);
    raster.wait = new Float32Array(width);
    raster.kind = new Uint8Array(width);
    raster.full = Array.from({length: 4}, () => new Uint32Array(width));
    raster.middle = Array.from({length: 4}, () => new Uint32Array(width));
  }
  raster.kindOf = Uint8Array.from(trace.activities, (a) => KINDS.indexOf(a.kind));
  raster.low = low;
  raster.high = high;
  raster.scale = width / (view.to - view.from);
  raster.cell = Math.max(Math.round(ratio), 1);
  // Patterns stand still against time, so that lanes can be moved as pixels.
  raster.phase = Math.round(view.from * raster.scale) % (4 * raster.cell) + 4 * raster.cell;
  const cut = (line) => (high - low === width ? line : line.subarray(low, high));
  raster.fullCut = raster.full.map(cut);
  raster.middleCut = raster.middle.map(cut);
}

// Adds up a track's intervals column by column.
function gather(track) {
  const {work, longest, tone, wait, kind, kindOf, low, high, scale} = raster;
  const {start, instruction, activity, step} = trace, {opcode} = trace.program, match = rows.match;
  const from = view.from, token = view.token, first = trace.first[track], last = first + trace.count[track];
  work.fill(0, low, high);
  wait.fill(0, low, high);
  longest.fill(0, low, high);
  tone.fill(0, low, high);
  kind.fill(0, low, high);
  if (first === last || (start[last] - from) * scale <= low) return;
  let i = Math.max(intervalAt(track, from + low / scale), first);
  for (let x = (start[i] - from) * scale; i < last && x < high; i++) {
    const end = (start[i + 1] - from) * scale;
    const a = x < low ? low : x, b = end > high ? high : end;
    x = end;
    const k = kindOf[activity[i]];
    if (b <= a || k === 5) continue;
    const who = instruction[i], shown = who >= 0 && match[who] === 1 && (token < 0 || step[i] === token);
    if (k === 0) {
      const colour = shown ? opcode[who] + 1 : 1;
      for (let c = a | 0; c < b; c++) {
        const share = (b < c + 1 ? b : c + 1) - (a > c ? a : c);
        work[c] += share;
        if (share > longest[c]) {
          longest[c] = share;
          tone[c] = colour;
        }
      }
    } else {
      for (let c = a | 0; c < b; c++) {
        const share = (b < c + 1 ? b : c + 1) - (a > c ? a : c);
        if (share > wait[c]) {
          wait[c] = share;
          kind[c] = shown ? k : k + 8;
        }
      }
    }
  }
}

// Two lines of pixels of a lane: one with work alone, and the one in the middle, which carries the waits. `y`: the row
// of the patterns, or -1 for none.
function fillLines(full, middle, y) {
  const {work, tone, wait, kind, low, high, cell, phase} = raster,
                                                  {tones, strokes, waits, faintWaits, paperWord} = colours;
  for (let x = low; x < high; x++) {
    const w = work[x], pause = wait[x];
    let value = paperWord;
    if (w > 0) {
      const t = tone[x];
      value = tones[t * 16 + (w >= 1 ? 15 : w * 15 | 0)];
      if (y >= 0 && w > 0.99 && t > 1 &&
          PATTERNS[(t - 1) % PATTERNS.length] >> (y * 4 + (((x + phase) / cell | 0) & 3)) & 1)
        value = strokes[t];
    }
    full[x] = value;
    if (pause > 0 && pause >= w) {
      const k = kind[x] & 7;
      if (DASHES[k] >> (((x + phase) / cell | 0) & 3) & 1) value = kind[x] > 7 ? faintWaits[k] : waits[k];
    }
    middle[x] = value;
  }
}

// Draws the lane of a track: rows `top` to `bottom` - 1 of `words`, as far as they lie within `height` rows.
function rasterLane(track, words, top, bottom, height, ratio) {
  gather(track);
  const tall = bottom - top, patterned = view.patterns && tall >= 9 * ratio, cycle = patterned ? 4 : 1;
  const thin = tall <= 2 ? tall : Math.max(Math.round(tall * 0.3), 1), from = top + ((tall - thin) >> 1);
  for (let p = 0; p < cycle; p++) fillLines(raster.full[p], raster.middle[p], patterned ? p : -1);
  for (let y = Math.max(top, 0); y < Math.min(bottom, height); y++) {
    const p = patterned ? Math.floor((y - top) / raster.cell) & 3 : 0;
    words.set((y >= from && y < from + thin ? raster.middleCut : raster.fullCut)[p], y * raster.width + raster.low);
  }
}
