// The trace, unpacked from the page: tools/profiler/page.h states the format. Everything is in typed arrays, since a
// trace may have millions of intervals; interval i of track t stands at index trace.first[t] + i of each column and
// lasts to the start at the next index.

const trace = {};

async function unpack(text) {
  const raw = atob(text);
  const packed = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
    this.scratch = new Float64Array(1024);
  }
  number() {
    return this.numbers(1)[0];
  }
  // The next numbers, good until the next call. Always the same type of array, which keeps this loop fast.
  numbers(count) {
    if (this.scratch.length < count) this.scratch = new Float64Array(count * 2);
    const bytes = this.bytes, to = this.scratch;
    let at = this.at;
    for (let i = 0; i < count; i++) {
      let value = bytes[at++];
      if (value >= 128) {
        const second = bytes[at++];
        value = (value & 127) | (second & 127) << 7;
        for (let scale = 16384, more = second >= 128; more; scale *= 128) {
          const byte = bytes[at++];
          value += (byte & 127) * scale;
          more = byte >= 128;
        }
      }
      to[i] = value;
    }
    this.at = at;
    return to;
  }
  // As whole numbers of 32 bits, or as doubles, in an array of their own.
  column(count) {
    return Int32Array.from(this.numbers(count).subarray(0, count));
  }
  wideColumn(count) {
    return this.numbers(count).slice(0, count);
  }
  text(length) {
    const text = new TextDecoder().decode(this.bytes.subarray(this.at, this.at + length));
    this.at += length;
    return text;
  }
}

function unzigzag(value) {
  return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
}

function readProgram(reader) {
  const count = reader.number();
  const column = () => reader.column(count);
  const uids = reader.wideColumn(count);
  for (let i = 0, uid = 0; i < count; i++) uids[i] = uid += unzigzag(uids[i]);
  const program = {count, uid: uids, opcode: column(), layer: column(), sm: column(), pages: column()};
  for (let i = 0; i < count; i++) program.layer[i]--;
  program.operands = new Array(count);
  for (let i = 0; i < count; i++) {
    program.operands[i] = trace.opcodes[program.opcode[i]].operands.map((info) => {
      const cols = reader.number();
      if (cols === 0) return null;
      const [buffer, row, rows, col] = reader.numbers(4);
      return {info, buffer, row, rows, col, cols};
    });
  }
  const length = reader.number(), from = reader.at;
  reader.at += length;
  program.textBytes = reader.bytes.subarray(from, from + length);
  program.byUid = new Map();
  for (let i = 0; i < count; i++) program.byUid.set(uids[i], i);
  return program;
}

// The disassembler's lines, decoded when the first one is wanted.
function instructionTexts() {
  trace.program.texts ??= new TextDecoder().decode(trace.program.textBytes).split("\n");
  return trace.program.texts;
}

function readTracks(reader) {
  trace.sms = reader.number();
  trace.roleCount = reader.number();
  const tracks = trace.sms * trace.roleCount, most = reader.number() + tracks;
  trace.first = new Int32Array(tracks);
  trace.count = new Int32Array(tracks);
  const start = new Float64Array(most), instruction = new Int32Array(most), activity = new Uint8Array(most);
  const step = new Int32Array(most), edge = new Uint16Array(most), publisher = new Int32Array(most).fill(-1);
  const waits = Uint8Array.from(trace.activities, (a) => (a.kind === "wait" ? 1 : 0));
  let at = 0;
  for (let t = 0; t < tracks; t++) {
    const count = reader.number();
    let time = reader.number();
    trace.first[t] = at;
    trace.count[t] = count;
    let numbers = reader.numbers(count);
    for (let i = 0; i < count; i++) {
      start[at + i] = time;
      time += numbers[i];
    }
    start[at + count] = time;
    numbers = reader.numbers(count);
    for (let i = 0, value = -1; i < count; i++) {
      const coded = numbers[i] | 0;
      instruction[at + i] = value += (coded >>> 1) ^ -(coded & 1);
    }
    instruction[at + count] = -1;
    activity.set(reader.bytes.subarray(reader.at, reader.at + count), at);
    reader.at += count;
    numbers = reader.numbers(count);
    for (let i = 0, value = 0; i < count; i++) step[at + i] = value += numbers[i];
    numbers = reader.numbers(count);
    for (let i = 0; i < count; i++) edge[at + i] = numbers[i];
    let waiting = 0;
    for (let i = at; i < at + count; i++) waiting += waits[activity[i]];
    numbers = reader.numbers(waiting);
    for (let i = at, k = 0; i < at + count; i++) {
      if (waits[activity[i]] === 1 && numbers[k++] !== 0) publisher[i] = instruction[i] + unzigzag(numbers[k - 1] - 1);
    }
    at += count + 1;
  }
  Object.assign(trace, {start, instruction, activity, step, edge, publisher, size: at});
}

function readPaths(reader) {
  const count = reader.number();
  trace.steps = trace.summary.trace.steps;
  trace.paths = new Map();
  for (let p = 0; p < count; p++) {
    const step = reader.number(), parts = reader.number();
    const column = () => reader.wideColumn(parts);
    const path = {step, count: parts, start: column(), length: column(), track: column(), instruction: column(),
                  from: column(), activity: column()};
    for (let i = 0; i < parts; i++) {
      if (i > 0) path.start[i] += path.start[i - 1];
      path.instruction[i]--;
      path.from[i]--;
    }
    trace.paths.set(step, path);
  }
}

// When steps begin, and from when to when anything was recorded.
function findSteps() {
  const steps = trace.steps;
  trace.stepStart = new Float64Array(steps + 1).fill(Infinity);
  trace.begin = Infinity;
  trace.end = 0;
  for (let t = 0; t < trace.first.length; t++) {
    const a = trace.first[t], b = a + trace.count[t];
    if (a === b) continue;
    trace.begin = Math.min(trace.begin, trace.start[a]);
    trace.end = Math.max(trace.end, trace.start[b]);
    if (t % trace.roleCount !== CONSUMER) continue;
    for (let i = a; i < b; i++) {
      if (trace.step[i] < steps && trace.start[i] < trace.stepStart[trace.step[i]])
        trace.stepStart[trace.step[i]] = trace.start[i];
    }
  }
  if (!(trace.begin < trace.end)) {
    trace.begin = 0;
    trace.end = 1000;
  }
  trace.stepStart[steps] = trace.end;
  for (let s = steps - 1; s >= 0; s--) {
    if (trace.stepStart[s] === Infinity) trace.stepStart[s] = trace.stepStart[s + 1];
  }
}

const LOADER = 0, CONSUMER = 1, STORER = 2;

function readTrace(bytes) {
  const reader = new Reader(bytes);
  Object.assign(trace, JSON.parse(reader.text(reader.number())));
  trace.program = readProgram(reader);
  readTracks(reader);
  trace.ranks = trace.summary.trace.ranks;
  trace.smsOfRank = trace.sms / trace.ranks;
  readPaths(reader);
  findSteps();
  trace.rolesSeen = trace.roles.map((_, role) => {
    for (let t = role; t < trace.count.length; t += trace.roleCount) if (trace.count[t] > 0) return true;
    return false;
  });
  for (const opcode of trace.opcodes) {
    const stores = opcode.operands.some((o) => o.access !== "read" && o.role === "storer");
    opcode.publishes = stores ? STORER : CONSUMER;
  }
}

// SMs are counted through all ranks; where there are several, texts name the rank and count within it.
function rankOf(sm) {
  return Math.floor(sm / trace.smsOfRank);
}

function smLabel(sm) {
  return trace.ranks > 1 ? `rank ${rankOf(sm)}, SM ${sm % trace.smsOfRank}` : "SM " + sm;
}

// Control characters, and those that turn or hide text around them, as their numbers.
function plain(text) {
  return String(text).replace(
      /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
}

function us(nanoseconds) {
  return nanoseconds / 1000;
}

function usText(nanoseconds) {
  const value = us(nanoseconds);
  return value.toFixed(Math.abs(value) >= 1e5 ? 0 : 2) + " us";
}

function instructionLabel(instruction) {
  if (instruction < 0) return "no instruction";
  const p = trace.program, layer = p.layer[instruction];
  return trace.opcodes[p.opcode[instruction]].name + (layer < 0 ? "" : ", layer " + layer) + ", #" + p.uid[instruction];
}

function stepLabel(step) {
  return "token " + (trace.summary.trace.first_step + step);
}

// What the edge of an interval names.
function edgeText(i) {
  const form = trace.activities[trace.activity[i]].edge;
  const names = form.startsWith("counter") ? trace.counters : trace.buffers;
  return plain(form.replace("%s", names[trace.edge[i]] ?? "?").replace("%u", trace.edge[i]));
}

// The interval of a track at a time; -1: none.
function intervalAt(track, time) {
  let low = trace.first[track], high = low + trace.count[track];
  const end = high;
  if (low === high || time < trace.start[low] || time >= trace.start[end]) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (trace.start[middle] <= time) low = middle;
    else high = middle;
  }
  return low;
}

// Waiting for the next instruction, and idling, belong to no part.
function isBetween(i) {
  const a = trace.activities[trace.activity[i]];
  return a.kind === "idle" || a.name === "INSTRUCTION" || a.name === "INSTRUCTION_SPACE" || trace.instruction[i] < 0;
}

// A role's part of an instruction in a step, as {track, a, b}: intervals a to b - 1.
function partAround(track, i) {
  const low = trace.first[track], high = low + trace.count[track];
  const same = (j) => trace.instruction[j] === trace.instruction[i] && trace.step[j] === trace.step[i];
  let a = i, b = i + 1;
  if (isBetween(i)) return {track, a, b};
  while (a > low && same(a - 1)) a--;
  while (b < high && same(b)) b++;
  while (a < i && isBetween(a)) a++;
  while (b - 1 > i && isBetween(b - 1)) b--;
  return {track, a, b};
}

function partOf(instruction, step, role) {
  const track = trace.program.sm[instruction] * trace.roleCount + role;
  const low = trace.first[track], high = low + trace.count[track];
  for (let i = low; i < high; i++) {
    if (trace.instruction[i] === instruction && trace.step[i] === step && !isBetween(i)) return partAround(track, i);
  }
  return null;
}

// The part in which an instruction's value is published.
function publishingPart(instruction, step) {
  const role = trace.opcodes[trace.program.opcode[instruction]].publishes;
  return partOf(instruction, step, role) ?? partOf(instruction, step, CONSUMER);
}

// The part to show for an instruction: of the wanted role, else of any, in the wanted step, else in any.
function anyPart(instruction, step, role) {
  for (const s of [step, ...Array(trace.steps).keys()]) {
    for (const r of [role, CONSUMER, STORER, LOADER]) {
      const part = partOf(instruction, s, r);
      if (part) return part;
    }
  }
  return null;
}

// All instructions that write something which this one waits for at interval i.
function publishersOf(i) {
  const p = trace.program, reader = trace.instruction[i], buffer = trace.edge[i], found = [];
  if (reader < 0 || !trace.activities[trace.activity[i]].edge.includes("buffer")) return found;
  const wanted = p.operands[reader].filter((o) => o && o.info.access === "read" && o.buffer === buffer);
  for (let w = 0; w < p.count; w++) {
    for (const o of p.operands[w]) {
      if (o && o.info.access !== "read" && o.buffer === buffer &&
          wanted.some(
              (r) => r.row < o.row + o.rows && o.row < r.row + r.rows && r.col < o.col + o.cols &&
                  o.col < r.col + r.cols)) {
        found.push(w);
        break;
      }
    }
  }
  return found;
}
