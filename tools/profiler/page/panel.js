// What stands beside the chart: the selected part, search results, and the summary, each line of which leads to its
// place. All texts are put in as text, never as markup.

function plural(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === "class") element.className = value;
    else if (name.startsWith("aria-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.map((child) => (child instanceof Node ? child : plain(child))));
  return element;
}

function link(text, action) {
  return make("button", {type: "button", class: "link", onclick: action}, text);
}

function select(part) {
  view.selection = part;
  if (part) {
    reveal(part);
    document.getElementById("status").textContent = partTitle(part) + ", " + placeOf(part);
  }
  showSelection();
  redraw();
}

// Leads to an instruction's part; step -1: the one at hand.
function goTo(instruction, step, role) {
  const part = anyPart(instruction, step < 0 ? stepAtHand() : step, role);
  if (part) select(part);
}

function stepAtHand() {
  if (view.selection) return trace.step[view.selection.a];
  const middle = (view.from + view.to) / 2;
  let step = 0;
  while (step + 1 < trace.steps && trace.stepStart[step + 1] <= middle) step++;
  return step;
}

function roleNumber(name) {
  return trace.roles.indexOf(name);
}

function instructionLink(instruction, step, role, text) {
  return instruction < 0 ? plain(text ?? "no instruction") :
                           link(text ?? instructionLabel(instruction), () => goTo(instruction, step, role));
}

function table(head, lines) {
  const wide = make("div", {class: "wide"}), body = make("tbody");
  for (const line of lines) body.append(make("tr", null, ...line.map((cell) => make("td", null, cell))));
  wide.append(make(
      "table", null, make("thead", null, make("tr", null, ...head.map((cell) => make("th", {scope: "col"}, cell)))),
      body));
  return wide;
}

// The selected part.

function placeOf(part) {
  const role = part.track % trace.roleCount;
  return `${smLabel((part.track - role) / trace.roleCount)}, ${trace.roles[role]}, ${stepLabel(trace.step[part.a])}`;
}

function partTitle(part) {
  if (isBetween(part.a)) return trace.activities[trace.activity[part.a]].text;
  return instructionLabel(trace.instruction[part.a]);
}

function activityTimes(part) {
  const times = new Map();
  for (let i = part.a; i < part.b; i++) {
    const text = trace.activities[trace.activity[i]].text;
    times.set(text, (times.get(text) ?? 0) + trace.start[i + 1] - trace.start[i]);
  }
  return [...times].filter(([, time]) => time > 0).sort((a, b) => b[1] - a[1]);
}

function waitLines(part) {
  const lines = [];
  for (let i = part.a; i < part.b; i++) {
    const kind = trace.activities[trace.activity[i]].kind;
    if (kind === "work" || kind === "idle") continue;
    const line = make(
        "li", null,
        `${usText(trace.start[i + 1] - trace.start[i])} for ${
            edgeText(i) || trace.activities[trace.activity[i]].text}`);
    if (trace.publisher[i] >= 0) {
      const source = publishingPart(trace.publisher[i], trace.step[i]);
      line.append(
          `, ended by ${smLabel(trace.program.sm[trace.publisher[i]])}: `,
          instructionLink(
              trace.publisher[i], trace.step[i], trace.opcodes[trace.program.opcode[trace.publisher[i]]].publishes));
      if (source) {
        const late = trace.start[source.b] - trace.start[i + 1];
        line.append(`, done ${usText(Math.abs(late))} ${late > 0 ? "after" : "before"} the wait's end`);
      }
    }
    lines.push({line, length: trace.start[i + 1] - trace.start[i]});
  }
  return lines.sort((a, b) => b.length - a.length).slice(0, 40).map((l) => l.line);
}

// Whose waits this part ended.
function waiters(part) {
  const instruction = trace.instruction[part.a], step = trace.step[part.a], found = [];
  for (let t = 0; t < trace.first.length; t++) {
    for (let i = trace.first[t], last = i + trace.count[t]; i < last; i++) {
      if (trace.publisher[i] === instruction && trace.step[i] === step) found.push({t, i});
    }
  }
  return found.sort((a, b) => trace.start[b.i + 1] - trace.start[b.i] - (trace.start[a.i + 1] - trace.start[a.i]));
}

function operandTable(instruction) {
  const lines = trace.program.operands[instruction].filter((o) => o).map(
      (o) =>
          [o.info.name, o.info.access, o.info.role, trace.buffers[o.buffer] ?? "?",
           `${o.row}:${o.row + o.rows}, ${o.col}:${o.col + o.cols}`]);
  return table(["operand", "access", "by", "buffer", "tiles: rows, columns"], lines);
}

function showSelection() {
  const box = document.getElementById("selection"), part = view.selection;
  box.replaceChildren();
  if (!part) {
    box.append(make(
        "p", {class: "note"},
        "Press a bar, or move to one with the arrow keys, to see its instruction and whom it waited for."));
    return;
  }
  const a = trace.start[part.a], b = trace.start[part.b],
        instruction = isBetween(part.a) ? -1 : trace.instruction[part.a];
  box.append(
      make("h2", {id: "selected"}, partTitle(part)), make("p", null, placeOf(part)),
      make(
          "p", null,
          `${usText(b - a)}, from ${usText(a)} to ${usText(b)}; ${
              usText(a - trace.stepStart[trace.step[part.a]])} into the token`));
  box.append(table(["activity", "us", "share"], activityTimes(part).map(([text, time]) => [
    text, us(time).toFixed(3), Math.round((100 * time) / Math.max(b - a, 1)) + " %"])));
  if (instruction < 0) return;
  const lines = waitLines(part);
  if (lines.length > 0) box.append(make("h3", null, "Waits"), make("ul", null, ...lines));
  const role = part.track % trace.roleCount, step = trace.step[part.a];
  if (role === trace.opcodes[trace.program.opcode[instruction]].publishes || role === CONSUMER) {
    const all = waiters(part);
    if (all.length > 0) {
      box.append(
          make("h3", null, `Ended ${all.length} waits`),
          make(
              "ul", null,
              ...all.slice(0, 8).map(
                  ({t, i}) => make(
                      "li", null,
                      `${usText(trace.start[i + 1] - trace.start[i])}, ${smLabel(Math.floor(t / trace.roleCount))}: `,
                      instructionLink(trace.instruction[i], step, t % trace.roleCount)))));
    }
  }
  const others = make("p", null, "Its other roles: ");
  trace.roles.forEach((name, r) => {
    const other = r === role ? null : partOf(instruction, step, r);
    if (other)
      others.append(link(`${name} ${usText(trace.start[other.b] - trace.start[other.a])}`, () => select(other)), " ");
  });
  const steps = make("p", null, "In other tokens: ");
  for (let s = Math.max(0, step - 4); s < Math.min(trace.steps, step + 5); s++) {
    const other = s === step ? null : partOf(instruction, s, role);
    if (other)
      steps.append(
          link(
              `${s + trace.summary.trace.first_step}: ${usText(trace.start[other.b] - trace.start[other.a])}`,
              () => select(other)),
          " ");
  }
  if (trace.steps === 1) steps.textContent = "";
  box.append(
      others, steps, make("h3", null, "Instruction"),
      make("p", null, make("code", {id: "instruction-text"}, instructionTexts()[instruction] ?? "")),
      make("p", {class: "note"}, trace.opcodes[trace.program.opcode[instruction]].does), operandTable(instruction));
}

// The summary.

function details(title, open, ...children) {
  return make("details", {open}, make("summary", null, title), ...children);
}

function findingList() {
  const first = trace.summary.trace.first_step, all = trace.summary.findings;
  if (all.length === 0) return make("p", null, "No instruction works much longer than its peers.");
  const of = (f) => trace.program.byUid.get(f.instruction);
  return make("ol", {id: "findings"}, ...all.slice(0, 20).map((f) => make("li", null,
    link(`${smLabel(trace.program.sm[of(f)])}, ${f.role}: ${instructionLabel(of(f))}`,
         () => goTo(of(f), f.once ? f.worst_step - first : -1, roleNumber(f.role))),
    f.once ? ` works ${f.worst_us.toFixed(2)} us in token ${f.worst_step}, ${f.work_us.toFixed(2)} us otherwise`
           : ` works ${f.work_us.toFixed(2)} us in each token, its peers ${f.peers_us.toFixed(2)} us`)),
    ...(all.length > 20 ? [make("li", null, `and ${all.length - 20} more`)] : []));
}

// The longest interval that a test picks, near the time at hand.
function longest(test) {
  const step = stepAtHand();
  let best = -1, where = -1, most = -1;
  for (let t = 0; t < trace.first.length; t++) {
    for (let i = trace.first[t], last = i + trace.count[t]; i < last; i++) {
      const length = trace.start[i + 1] - trace.start[i] + (trace.step[i] === step ? 1e12 : 0);
      if (length > most && test(i, t % trace.roleCount)) {
        most = length;
        best = i;
        where = t;
      }
    }
  }
  if (best >= 0) select(partAround(where, best));
}

function activityTable() {
  const per = trace.summary.us_per_step, token = trace.summary.trace.us_per_step || 1;
  const lines = trace.activities.map((a, k) => [a.text, ...trace.roles.map((role, r) => {
    const time = per[role][a.text];
    return time > 0 ? link(
                          `${time.toFixed(1)} (${Math.round((100 * time) / token)}%)`,
                          () => longest((i, role_) => role_ === r && trace.activity[i] === k)) :
                      "";
  })]);
  return table(
      ["us per token and SM", ...trace.roles], lines.filter((line) => line.slice(1).some((cell) => cell !== "")));
}

function opcodeTable() {
  const share = (o, key) => (o.us_per_step > 0 ? Math.round((100 * o[key]) / o.us_per_step) + "%" : "");
  return table(
      ["opcode", "role", "us per token", "p50", "p99", "work", "wait", "weights", "ring", "hand", "MB", "%band"],
      trace.summary.opcodes.map(
          (o) =>
              [link(
                   o.opcode,
                   () => longest(
                       (i, role) => role === roleNumber(o.role) && trace.instruction[i] >= 0 && !isBetween(i) &&
                           trace.opcodes[trace.program.opcode[trace.instruction[i]]].name === o.opcode)),
               o.role, o.us_per_step.toFixed(1), o.p50_us.toFixed(2), o.p99_us.toFixed(2), share(o, "work_us"),
               share(o, "wait_us"), share(o, "weights_us"), share(o, "ring_us"), share(o, "hand_us"),
               o.bytes_per_step ? (o.bytes_per_step / 1e6).toFixed(2) : "",
               o.bandwidth_percent ? o.bandwidth_percent.toFixed(0) : ""]));
}

function stageName(s) {
  return s.opcode + (s.value ? " " + s.value : "");
}

function goToStage(s) {
  const step = stepAtHand(), from = trace.stepStart[step] + s.begin_us * 1000, length = s.us * 1000;
  setWindow(from - length * 0.3, from + length * 1.3);
  redraw();
}

function stageTable() {
  return table(
      ["stage", "layer", "at us", "us", "start skew", "end skew", "ring empty", "ring full"],
      trace.summary.stages.map(
          (s) =>
              [link(stageName(s), () => goToStage(s)), s.layer ?? "", s.begin_us.toFixed(1), s.us.toFixed(2),
               s.start_skew_us.toFixed(2), s.end_skew_us.toFixed(2), s.ring_empty_us.toFixed(2),
               s.ring_full_us.toFixed(2)]));
}

function waitList() {
  const first = trace.summary.trace.first_step, of = (x) => trace.program.byUid.get(x.instruction) ?? -1;
  return make(
      "ol", {id: "waits"},
      ...trace.summary.waits.slice(0, 20).map(
          (w) => make(
              "li", null, `${w.us.toFixed(2)} us in token ${w.step}: ${smLabel(trace.program.sm[of(w.waiter)])}, `,
              instructionLink(of(w.waiter), w.step - first, roleNumber(w.waiter.role)),
              ` for ${smLabel(trace.program.sm[of(w.publisher)])}, `,
              instructionLink(of(w.publisher), w.step - first, roleNumber(w.publisher.role)),
              `, done ${Math.abs(w.published_before_end_us).toFixed(2)} us ${
                  w.published_before_end_us < 0 ? "after" : "before"} its end`)));
}

function hopTable() {
  const t = trace.summary.trace, kinds = trace.ranks > 1 ? ["local", "remote"] : ["local"];
  const cells = (hop) =>
      hop.count === 0 ? ["", "", ""] : [(hop.count / t.steps).toFixed(1), hop.p50_us.toFixed(2), hop.p90_us.toFixed(2)];
  return make(
      "div", {id: "hops"},
      table(
          ["us, to", ...kinds.flatMap((kind) => [kind + ", per token", "p50", "p90"])],
          trace.summary.hops.map((h) => [h.opcode, ...kinds.flatMap((kind) => cells(h[kind]))])),
      make(
          "p", {class: "note"},
          `From the end of who published last to the end of the wait. Clocks agree within ${
              (t.alignment_ns / 1000).toFixed(2)} us, and less means little.` +
              (trace.ranks > 1 ?
                   " A local hop may be the longer for a word of another rank, published a little before, where an " +
                       "opcode reads those too." :
                   "")));
}

// The longest parts of the path of the token at hand, and what its time is made of.
function pathBox() {
  const step = stepAtHand(), path = trace.paths.get(step), totals = new Map();
  if (!path || path.count === 0) return make("p", null, "The page holds no critical path of this token.");
  let all = 0;
  for (let i = 0; i < path.count; i++) {
    const name = path.instruction[i] < 0 ? "none" : trace.opcodes[trace.program.opcode[path.instruction[i]]].name;
    const key = name + ": " + trace.activities[path.activity[i]].text;
    totals.set(key, (totals.get(key) ?? 0) + path.length[i]);
    all += path.length[i];
  }
  const longestParts =
      [...path.length.keys()].sort((a, b) => path.length[b] - path.length[a]).slice(0, 12).sort((a, b) => a - b);
  return make(
      "div", null,
      make(
          "p", null,
          `${stepLabel(step)}: ${usText(all)} in ${
              path.count} parts. Nothing but what is on it makes the token take longer.`),
      table(
          ["made of", "us", ""],
          [...totals]
              .sort((a, b) => b[1] - a[1])
              .slice(0, 14)
              .map(([key, time]) => [key, us(time).toFixed(2), make("span", {
                                       class: "bar",
                                       style: `width:${Math.round((90 * time) / all)}px`
                                     })])),
      make("p", null, "Its longest parts:"),
      make(
          "ol", null,
          ...longestParts.map(
              (i) => make(
                  "li", null, `${usText(path.length[i])} ${smLabel(Math.floor(path.track[i] / trace.roleCount))}, `,
                  link(
                      `${trace.activities[path.activity[i]].text}, ${instructionLabel(path.instruction[i])}`,
                      () => goToPathPart(path, i))))));
}

function goToPathPart(path, i) {
  const at = intervalAt(path.track[i], path.start[i]);
  if (at >= 0) select(partAround(path.track[i], at));
}

function smCount() {
  return `${trace.sms} SMs` + (trace.ranks > 1 ? ` of ${trace.ranks} ranks` : "");
}

function aboutList() {
  const t = trace.summary.trace;
  return make(
      "ul", null,
      ...[["model", t.model],
          ["device", t.device],
          ["driver", t.driver],
          ["mkvm", t.version],
          ["command", t.command],
          [
            "recorded",
            `${plural(t.steps, "token")} from token ${t.first_step} of the launch, position ${t.first_position}; ${
                smCount()}, ${t.records} records, ${t.dropped} dropped`
          ],
          [
            "token",
            `${t.us_per_step.toFixed(2)} us in the trace, ${t.launch_us_per_step.toFixed(2)} us by the launch of ${
                t.launch_steps} tokens`
          ],
          [
            "clocks",
            `of two SMs agree within ${Math.round(t.alignment_ns)} ns` +
                (trace.ranks > 1 ?
                     ", on two ranks too: which of two moments there came first is not known where they are closer, " +
                         "and a single hop that takes less means nothing" :
                     "")
          ],
          [
            "accounting",
            t.problem ? "INCOMPLETE: " + t.problem :
                        `every role accounts for its time within ${t.unaccounted_percent.toFixed(2)} %` +
                    (trace.serial ? "; one thread moves all SMs, which idle without it" : "")
          ],
  ].filter(([, text]) => text !== "")
          .map(([name, text]) => make("li", null, name + ": " + text)));
}

function showSummary() {
  const t = trace.summary.trace, path = details("Critical path", true, make("div", {id: "path-box"}));
  document.getElementById("facts").textContent = plain(
      `${t.model || "a trace"} on ${t.device || "an unnamed device"}: ${t.us_per_step.toFixed(2)} us per token, ${
          smCount()}, ${plural(t.steps, "token")}` +
      (t.problem ? ", INCOMPLETE" : ""));
  document.title = plain(`mkvm trace: ${t.model} ${t.device}`);
  document.getElementById("summary").replaceChildren(
    details("Findings", true, findingList()), path, details("Where the time goes", true, activityTable()),
    details("Longest waits for other SMs", false, waitList()), details("Hops", false, hopTable()),
    details("Opcodes", false, opcodeTable()),
    details("Stages", false, stageTable()), details("About this trace", false, aboutList()));
  showPathBox();
}

let pathStep = -1;

function showPathBox() {
  if (pathStep === stepAtHand()) return;
  pathStep = stepAtHand();
  document.getElementById("path-box")?.replaceChildren(pathBox());
}

// Search: a uid, or words that all stand in the instruction's text.

function findInstructions(query) {
  const words = query.trim().toLowerCase().split(/\s+/).filter((w) => w !== ""), found = [];
  if (words.length === 0) return found;
  const exact =
      /^#?\d+$/.test(query.trim()) ? trace.program.byUid.get(Number(query.trim().replace("#", ""))) : undefined;
  if (exact !== undefined) found.push(exact);
  const texts = instructionTexts();
  for (let i = 0; i < trace.program.count; i++) {
    if (i === exact) continue;
    const text = texts[i].toLowerCase();
    if (words.every((w) => text.includes(w))) found.push(i);
  }
  return found;
}

function showResults() {
  const box = document.getElementById("results"), found = findInstructions(view.search);
  box.hidden = view.search.trim() === "";
  box.replaceChildren();
  if (box.hidden) return [];
  box.append(
      make("h2", null, found.length === 1 ? "1 instruction matches" : `${found.length} instructions match`),
      make(
          "ul", null,
          ...found.slice(0, 50).map(
              (i) => make("li", null, instructionLink(i, -1, CONSUMER), ` on ${smLabel(trace.program.sm[i])}`))));
  if (found.length > 50) box.append(make("p", {class: "note"}, `the first 50 of them; add words to narrow the search`));
  return found;
}
