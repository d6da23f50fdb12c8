// Mouse, touch, keys, and the filters' controls.

const tip = document.getElementById("tip");
const pointers = new Map();
let drag = null;

function placeIn(element, event) {
  const box = element.getBoundingClientRect();
  return {x: event.clientX - box.left, y: event.clientY - box.top};
}

// The part under a point; on the strip of the critical path, the part that is there on the path.
function partAt(x, y) {
  if (x < GUTTER) return null;
  if (y >= AXIS && y < HEAD) {
    const time = timeOf(x);
    for (const path of trace.paths.values()) {
      const i = firstPart(path);
      for (let k = i; k < path.count && path.start[k] <= time; k++) {
        if (time < path.start[k] + path.length[k]) {
          const at = intervalAt(path.track[k], path.start[k]);
          return at < 0 ? null : partAround(path.track[k], at);
        }
      }
    }
    return null;
  }
  const track = trackAt(y);
  // A finger or a pixel covers more than one interval: the longest of those that begin under it counts.
  const reach = (view.to - view.from) / plotWidth();
  let i = track < 0 ? -1 : intervalAt(track, timeOf(x));
  if (i < 0) return null;
  for (let k = i + 1; k < trace.first[track] + trace.count[track] && trace.start[k] < timeOf(x) + reach; k++) {
    if (trace.start[k + 1] - trace.start[k] > trace.start[i + 1] - trace.start[i]) i = k;
  }
  return {...partAround(track, i), at: i};
}

function showTip(x, y) {
  const part = partAt(x, y);
  tip.hidden = !part;
  if (!part) return;
  const i = part.at ?? part.a, instruction = isBetween(i) ? -1 : trace.instruction[i];
  const edge = edgeText(i);
  tip.replaceChildren(
      make("p", null, make("strong", null, partTitle(part)), " " + usText(trace.start[part.b] - trace.start[part.a])),
      make("p", null, placeOf(part)),
      make(
          "p", null,
          `here: ${trace.activities[trace.activity[i]].text} ${usText(trace.start[i + 1] - trace.start[i])} from ${
              usText(trace.start[i])}` +
              (edge ? `; ${edge}` : "") +
              (trace.publisher[i] >= 0 ?
                   `, ended by ${smLabel(trace.program.sm[trace.publisher[i]])}, ${
                       instructionLabel(trace.publisher[i])}` :
                   "")),
      ...(instruction < 0 ? [] : [make("p", null, make("code", null, instructionTexts()[instruction]))]));
  const box = document.getElementById("charts").getBoundingClientRect(), top = canvas.offsetTop;
  tip.style.left = clamp(x + 14, 4, Math.max(box.width - tip.offsetWidth - 6, 4)) + "px";
  const below = y + top + 18;
  tip.style.top = (below + tip.offsetHeight < box.height ? below : Math.max(y + top - tip.offsetHeight - 12, 4)) + "px";
}

function startGesture() {
  const points = [...pointers.values()];
  drag = {
    points: points.map((p) => ({...p})),
    from: view.from,
    to: view.to,
    top: view.top,
    row: rowHeight(),
    moved: drag?.moved || points.length > 1
  };
}

function moveGesture() {
  const now = [...pointers.values()], was = drag.points, scale = (drag.to - drag.from) / plotWidth();
  if (now.length === 1) {
    const dx = now[0].x - was[0].x, dy = now[0].y - was[0].y;
    if (!drag.moved && Math.hypot(dx, dy) < 5) return;
    drag.moved = true;
    Object.assign(view, {from: drag.from, to: drag.to});
    pan(-dx);
    setTop(drag.top - dy);
  } else {
    const distance = (p) => Math.max(Math.abs(p[0].x - p[1].x), 20), middle = (p) => (p[0].x + p[1].x) / 2;
    const factor = distance(was) / distance(now), anchor = drag.from + (middle(was) - GUTTER) * scale;
    const left = anchor - (middle(now) - GUTTER) * scale * factor;
    setWindow(left, left + (drag.to - drag.from) * factor);
    const tall = (p) => Math.abs(p[0].y - p[1].y), high = (p) => (p[0].y + p[1].y) / 2;
    if (tall(was) > 60) {
      view.rowHeight = drag.row;
      view.top = drag.top;
      zoomRows(Math.max(tall(now), 20) / tall(was), high(was));
    }
    setTop(view.top - (high(now) - high(was)) * (tall(was) > 60 ? 0 : 1));
  }
  redraw();
}

function listenToChart() {
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, placeIn(canvas, event));
    startGesture();
    tip.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = placeIn(canvas, event);
    if (pointers.has(event.pointerId)) {
      pointers.set(event.pointerId, at);
      moveGesture();
    } else if (event.pointerType === "mouse") {
      showTip(at.x, at.y);
    }
  });
  const end = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    const at = placeIn(canvas, event), tapped = event.type === "pointerup" && !drag.moved;
    if (pointers.size > 0) {
      startGesture();
      return;
    }
    drag = null;
    if (tapped) {
      const part = partAt(at.x, at.y);
      view.selection = part ? {track: part.track, a: part.a, b: part.b} : null;
      showSelection();
      if (part) document.getElementById("status").textContent = partTitle(part) + ", " + placeOf(part);
      if (part && event.pointerType !== "mouse") showTip(at.x, at.y);
    }
    showPathBox();
    redraw();
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") tip.hidden = true; // a finger leaves as soon as it is lifted
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = placeIn(canvas, event), unit = event.deltaMode === 1 ? 16 : 1;
    const dx = (event.shiftKey ? event.deltaY + event.deltaX : event.deltaX) * unit,
          dy = event.shiftKey ? 0 : event.deltaY * unit;
    if (dx !== 0) pan(dx);
    if (event.altKey || at.x < GUTTER) zoomRows(Math.exp(-dy * 0.002), at.y);
    else if (dy !== 0) zoomTime(Math.exp(dy * 0.002), at.x);
    redraw();
    showPathBox();
  }, {passive: false});
  canvas.addEventListener("dblclick", (event) => {
    const at = placeIn(canvas, event), part = partAt(at.x, at.y);
    if (part) zoomTo(part);
  });
  const moveOverview = (event) => {
    if (event.buttons === 0) return;
    const at = placeIn(overview, event), half = (view.to - view.from) / 2;
    const time = trace.begin + ((at.x - GUTTER) / plotWidth()) * (trace.end - trace.begin);
    setWindow(time - half, time + half);
    showPathBox();
    redraw();
  };
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    moveOverview(event);
  });
  overview.addEventListener("pointermove", moveOverview);
  document.addEventListener("keydown", pressKey);
}

function zoomTo(part) {
  const a = trace.start[part.a], b = trace.start[part.b], air = Math.max(b - a, 20);
  setWindow(a - air, b + air);
  redraw();
}

// The next part of the same track, or the nearest in time on another lane.
function neighbour(key) {
  const part = view.selection;
  if (!part)
    return partAt(GUTTER + plotWidth() / 2, HEAD + 4) ?? partAt(GUTTER + plotWidth() / 2, HEAD + plotHeight() / 2);
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const i = key === "ArrowRight" ? part.b : part.a - 1, low = trace.first[part.track];
    return i < low || i >= low + trace.count[part.track] ? null : partAround(part.track, i);
  }
  const lanes = rows.sms.flatMap((sm) => shownRoles().map((role) => sm * trace.roleCount + role));
  const track = lanes[lanes.indexOf(part.track) + (key === "ArrowDown" ? 1 : -1)];
  const i = track === undefined ? -1 : intervalAt(track, (trace.start[part.a] + trace.start[part.b]) / 2);
  return i < 0 ? null : partAround(track, i);
}

// To the next or the last part of the critical path, from the selection or the window's start.
function alongPath(direction) {
  const step = stepAtHand(), path = trace.paths.get(step);
  if (!path || path.count === 0) return;
  const time = view.selection ? trace.start[view.selection.a] : view.from;
  let i = 0;
  if (direction > 0) {
    const end = view.selection ? trace.start[view.selection.b] : view.from;
    while (i < path.count - 1 && path.start[i] < end) i++;
  } else {
    i = path.count - 1;
    while (i > 0 && path.start[i] + path.length[i] > time) i--;
  }
  goToPathPart(path, i);
}

// To whoever ended the longest wait of the selected part.
function followWait() {
  const part = view.selection;
  let best = -1;
  for (let i = part ? part.a : 0; part && i < part.b; i++) {
    const length = (k) => trace.start[k + 1] - trace.start[k];
    if (trace.publisher[i] >= 0 && (best < 0 || length(i) > length(best))) best = i;
  }
  if (best >= 0)
    goTo(trace.publisher[best], trace.step[best], trace.opcodes[trace.program.opcode[trace.publisher[best]]].publishes);
}

const KEYS = [
  ["arrow keys", "the next part of this role, or of the lane above or below"],
  ["Shift + arrow keys", "move the window"],
  ["+ and -, mouse wheel, pinch", "zoom in time"],
  ["[ and ], Alt + wheel, wheel over the names, pinch", "lower or taller rows; tall ones show all roles"],
  ["Shift + wheel, drag", "move the window"],
  ["w", "to the part that ended the selected part's longest wait"],
  ["c and Shift + c", "along the critical path"],
  ["n and Shift + n", "the next token, the one before"],
  ["f, double click", "zoom to the selected part"],
  ["t", "show the token at hand"],
  ["0", "show all"],
  ["/", "search"],
  ["Esc", "drop the selection"],
  ["?", "this list"],
];

function moveToken(by) {
  const step = clamp(stepAtHand() + by, 0, Math.max(trace.steps - 1, 0)), part = view.selection;
  const same =
      part && !isBetween(part.a) ? partOf(trace.instruction[part.a], step, part.track % trace.roleCount) : null;
  const shift = trace.stepStart[step] - trace.stepStart[stepAtHand()];
  setWindow(view.from + shift, view.to + shift);
  if (same) select(same);
}

function pressKey(event) {
  const elsewhere = event.target !== canvas && event.target !== document.body;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, dialog")) return;
  if (elsewhere && event.key.startsWith("Arrow")) return;
  const middle = GUTTER + plotWidth() / 2, part = view.selection;
  const actions = {
    "+": () =>
        zoomTime(0.7, part ? clamp(xOf((trace.start[part.a] + trace.start[part.b]) / 2), GUTTER, size.width) : middle),
    "-": () => zoomTime(1 / 0.7, middle),
    "]": () => zoomRows(1.25, HEAD + plotHeight() / 2),
    "[": () => zoomRows(0.8, HEAD + plotHeight() / 2),
    "0": showWhole,
    "t": () => showStep(stepAtHand()),
    "f": () => part && zoomTo(part),
    "w": followWait,
    "c": () => alongPath(1),
    "C": () => alongPath(-1),
    "n": () => moveToken(1),
    "N": () => moveToken(-1),
    "/": () => document.getElementById("search").focus(),
    "?": () => document.getElementById("help").showModal(),
    "Escape": () => select(null),
  };
  actions["="] = actions["+"];
  if (event.key.startsWith("Arrow")) {
    if (event.shiftKey) {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight")
        pan((event.key === "ArrowRight" ? 0.15 : -0.15) * plotWidth());
      else setTop(view.top + (event.key === "ArrowDown" ? 60 : -60));
    } else {
      const next = neighbour(event.key);
      if (next) select({track: next.track, a: next.a, b: next.b});
    }
  } else if (actions[event.key]) {
    actions[event.key]();
  } else {
    return;
  }
  event.preventDefault();
  tip.hidden = true;
  showPathBox();
  redraw();
}

// Filters.

function refilter() {
  updateRows();
  updateMatches();
  setTop(view.top);
  redraw();
}

// A swatch as the chart draws an opcode, or a wait.
function swatch(draw) {
  const image = make("canvas", {width: 36, height: 14});
  image.style.cssText = "width:36px;height:14px";
  draw(image.getContext("2d"));
  return image;
}

function opcodeSwatch(opcode) {
  return swatch((c) => {
    c.fillStyle = PALETTE[opcode % PALETTE.length];
    c.fillRect(0, 0, 36, 14);
    if (!view.patterns) return;
    c.fillStyle = "rgba(0, 0, 0, 0.3)";
    for (let y = 0; y < 14; y++)
      for (let x = 0; x < 36; x++)
        if (PATTERNS[opcode % PATTERNS.length] >> ((y & 3) * 4 + (x & 3)) & 1) c.fillRect(x, y, 1, 1);
  });
}

function waitSwatch(kind) {
  return swatch((c) => {
    c.fillStyle = kind === "wait" || kind === "feed" ? colours.wait : colours.hand;
    for (let x = 0; x < 36; x++) if (DASHES[KINDS.indexOf(kind)] >> (x & 3) & 1) c.fillRect(x, 5, 1, 4);
  });
}

function showLegend() {
  const used = new Set(trace.program.opcode), legend = document.getElementById("legend");
  legend.replaceChildren(
      ...trace.opcodes.map((o, i) => i).filter((i) => used.has(i)).map((i) => {
        const button = make(
            "button", {
              type: "button",
              title: plain(trace.opcodes[i].does),
              "aria-pressed": String(view.opcodes.has(i)),
              onclick: () => {
                if (!view.opcodes.delete(i)) view.opcodes.add(i);
                showControls();
                refilter();
              }
            },
            opcodeSwatch(i), trace.opcodes[i].name);
        button.dataset.opcode = trace.opcodes[i].name;
        return button;
      }),
      ...[["wait", "waits for another SM"], ["feed", "for weights"], ["ring", "for room in a ring"],
          ["hand", "for its own SM"]]
          .map(([kind, text]) => make("span", null, waitSwatch(kind), text)),
      make("span", null, "empty: idle"));
}

function fillSelect(id, all, texts, chosen) {
  document.getElementById(id).replaceChildren(
      make("option", {value: "-1"}, all),
      ...texts.map(([value, text]) => make("option", {value: String(value)}, text)));
  document.getElementById(id).value = String(chosen);
}

// Sets all controls to what is shown.
function showControls() {
  const first = trace.summary.trace.first_step,
        layers = [...new Set(trace.program.layer)].filter((l) => l >= 0).sort((a, b) => a - b);
  fillSelect("token", "all", Array.from({length: trace.steps}, (_, s) => [s, String(s + first)]), view.token);
  fillSelect("layer", "all", layers.map((l) => [l, String(l)]), view.layer);
  document.getElementById("sms").value = view.sms;
  document.getElementById("sms").placeholder = trace.ranks > 1 ? "0-7, 1:12" : "0-7, 12";
  document.getElementById("search").value = view.search;
  const roles = document.getElementById("roles");
  roles.replaceChildren(
      roles.firstElementChild, ...trace.roles.map((name, r) => r).filter((r) => trace.rolesSeen[r]).map((r) => {
        const box = make("input", {
          type: "checkbox",
          checked: view.roles.size === 0 || view.roles.has(r),
          onchange: () => {
            const on = [...roles.querySelectorAll("input")].map((b) => b.checked),
                  seen = trace.roles.map((_, k) => k).filter((k) => trace.rolesSeen[k]);
            view.roles = new Set(on.every((x) => x) ? [] : seen.filter((_, k) => on[k]));
            refilter();
          }
        });
        box.dataset.role = trace.roles[r];
        return make("label", null, box, trace.roles[r]);
      }));
  document.getElementById("show-path").hidden = trace.serial;
  document.getElementById("show-path").setAttribute("aria-pressed", String(view.path));
  document.getElementById("patterns").setAttribute("aria-pressed", String(view.patterns));
  showLegend();
}

function applyTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = view.theme || (dark ? "dark" : "light");
  document.documentElement.style.colorScheme = document.documentElement.dataset.theme;
  updateColours();
  showLegend();
  redraw();
}

function listenToControls() {
  const on = (id, event, action) => document.getElementById(id).addEventListener(event, action);
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  on("token", "change", (event) => {
    view.token = Number(event.target.value);
    if (view.token >= 0) showStep(view.token);
    refilter();
    showPathBox();
  });
  on("layer", "change", (event) => {
    view.layer = Number(event.target.value);
    refilter();
  });
  on("sms", "input", (event) => {
    view.sms = event.target.value;
    refilter();
  });
  let hit = -1;
  on("search", "input", (event) => {
    view.search = event.target.value;
    hit = -1;
    showResults();
    saveState();
  });
  on("search", "keydown", (event) => {
    if (event.key === "Escape") canvas.focus();
    if (event.key !== "Enter") return;
    event.preventDefault();
    const found = findInstructions(view.search);
    if (found.length === 0) return;
    hit = (hit + (event.shiftKey ? found.length - 1 : 1)) % found.length;
    goTo(found[hit], -1, CONSUMER);
  });
  on("clear", "click", () => {
    Object.assign(view, {opcodes: new Set(), roles: new Set(), layer: -1, token: -1, sms: "", search: ""});
    showControls();
    showResults();
    refilter();
  });
  on("whole", "click", () => {
    showWhole();
    redraw();
  });
  for (const [id, field] of [["show-path", "path"], ["patterns", "patterns"]]) {
    on(id, "click", () => {
      view[field] = !view[field];
      showControls();
      redraw();
    });
  }
  on("theme", "click", () => {
    view.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    applyTheme();
  });
  on("help-button", "click", () => document.getElementById("help").showModal());
  document.getElementById("help").replaceChildren(
      make("h2", null, "How to look around"), table(["", ""], KEYS),
      make(
          "p", null,
          "A bar is work, in the colour of its opcode; a thin line is waiting; empty is idle. " +
              "Pale bars work only for a part of their pixel: zoom in."),
      make("button", {type: "button", onclick: () => document.getElementById("help").close()}, "Close"));
  addEventListener("hashchange", () => {
    if (location.hash === stateText()) return;
    applyState();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  new ResizeObserver(redraw).observe(canvas);
}

function applyState() {
  readState(location.hash);
  applyTheme();
  showControls();
  showResults();
  showSelection();
  showPathBox();
  redraw();
}
