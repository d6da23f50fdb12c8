"use strict";
// Talks to the endpoints of the server that the page comes from, and to nobody else.
const at = id => document.getElementById(id);
const numbers = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                 "seed"];
const themes = ["system", "light", "dark"];
let said = [];        // the conversation, as the endpoint takes it
let working = null;   // the AbortController of the answer that comes
let modelId = null;

const remember = (name, value) => { try { sessionStorage.setItem(name, value); } catch (e) { /* private windows */ } };
const recall = name => { try { return sessionStorage.getItem(name); } catch (e) { return null; } };
let key = recall("key") || "";

function show(problem) {
  at("problem").hidden = problem === "";
  at("problem").textContent = problem;
}

async function call(path, options = {}) {
  const headers = options.body === undefined ? {} : {"Content-Type": "application/json"};
  if (key !== "") headers.Authorization = "Bearer " + key;
  return fetch(path, {...options, headers});
}

function askForKey() {
  const dialog = at("key-dialog");
  return new Promise(done => {
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "good") {
        key = at("key").value;
        remember("key", key);
      }
      done(dialog.returnValue === "good");
    }, {once: true});
    dialog.returnValue = "";
    dialog.showModal();
  });
}

// The answer to a request, after a key was asked for where one is missing.
async function callWithKey(path, options) {
  let response = await call(path, options);
  while (response.status === 401 && await askForKey()) response = await call(path, options);
  return response;
}

async function problemOf(response) {
  try {
    return (await response.json()).error.message;
  } catch (e) {
    return "the server says " + response.status;
  }
}

// ---- What is said ----

function addArticle(role) {
  const article = document.createElement("article"), head = document.createElement("h2");
  const text = document.createElement("div");
  article.className = role;
  head.textContent = role === "user" ? "You" : "Model";
  article.append(head, text);
  at("log").append(article);
  at("log").scrollTop = at("log").scrollHeight;
  return {article, text, news: "", frame: 0};
}

function addNote(article, text) {
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = text;
  article.append(note);
}

// ---- Sampling ----

// The fields that are filled in; null when one of them is wrong.
function readSampling() {
  const out = {};
  let good = true;
  for (const name of numbers) {
    const field = at(name), text = field.value.trim(), value = Number(text), limits = field.dataset;
    const wrong = text !== "" && (!Number.isFinite(value) || value < Number(limits.low) ||
                                  value > Number(limits.high ?? Infinity) ||
                                  ("whole" in limits && !Number.isSafeInteger(value)));
    field.setAttribute("aria-invalid", wrong);
    if (wrong && good) {
      const range = "from " + limits.low + (limits.high === undefined ? " on" : " to " + limits.high);
      show(field.labels[0].textContent + ": a " + ("whole" in limits ? "whole " : "") + "number " + range);
      field.focus();
    }
    good = good && !wrong;
    if (text !== "" && !wrong) out[name] = value;
  }
  return good ? out : null;
}

// ---- An answer ----

// Calls take(object) for each event of a stream until [DONE].
async function readEvents(response, take) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) throw new Error("the server's answer ends before its end");
    rest += decoder.decode(value, {stream: true});
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      take(JSON.parse(data));
    }
  }
}

// What has come since the last frame is shown at once: a model may be faster than a screen.
function paint(answer, meter) {
  answer.frame = 0;
  const log = at("log"), below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  answer.text.append(answer.news);
  answer.news = "";
  if (below) log.scrollTop = log.scrollHeight;
  tell(meter);
}

function tell(meter) {
  const seconds = (meter.last - meter.first) / 1e3, speed = seconds > 0 ? (meter.tokens - 1) / seconds : 0;
  const waited = meter.first === 0 ? "" : ", the first after " + Math.round(meter.first - meter.start) + " ms";
  const rate = speed > 0 ? ", " + speed.toFixed(speed < 100 ? 1 : 0) + " a second" : "";
  at("rate").textContent = meter.tokens + " tokens" + rate + waited;
}

function takeEvent(event, answer, meter) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) meter.tokens = event.usage.completion_tokens;
  const choice = event.choices[0];
  if (choice === undefined) return;
  const piece = choice.delta ? choice.delta.content : choice.text;
  if (piece) {
    meter.last = performance.now();
    if (meter.first === 0) meter.first = meter.last;
    answer.news += piece;
  }
  if (choice.finish_reason) meter.reason = choice.finish_reason;
  if (answer.frame === 0) answer.frame = requestAnimationFrame(() => paint(answer, meter));
}

async function ask(text, sampling) {
  const chat = at("mode").value === "chat", system = at("system").value.trim();
  const meter = {start: performance.now(), first: 0, last: 0, tokens: 0, reason: ""};
  const turns = [...(system === "" ? [] : [{role: "system", content: system}]), ...said, {role: "user", content: text}];
  const body = {model: modelId, stream: true, stream_options: {include_usage: true, continuous_usage_stats: true},
                ...sampling,
                ...(chat ? {messages: turns} : {prompt: text})};
  addArticle("user").text.textContent = text;
  const answer = addArticle("assistant");
  answer.article.setAttribute("aria-busy", "true");
  let problem = "";
  try {
    const response = await callWithKey(chat ? "/v1/chat/completions" : "/v1/completions",
                                       {method: "POST", body: JSON.stringify(body), signal: working.signal});
    if (!response.ok) throw new Error(await problemOf(response));
    await readEvents(response, event => takeEvent(event, answer, meter));
    if (meter.reason === "length") {
      addNote(answer.article, "It ends here because the number of tokens, or the context, is used up.");
    }
  } catch (e) {
    problem = e.name === "AbortError" ? "" : e.message;
    addNote(answer.article, e.name === "AbortError" ? "Stopped." : "Failed: " + e.message);
  }
  cancelAnimationFrame(answer.frame);
  paint(answer, meter);
  answer.article.removeAttribute("aria-busy");
  if (chat && answer.text.textContent !== "") {
    said.push({role: "user", content: text}, {role: "assistant", content: answer.text.textContent});
  }
  return problem;
}

async function send() {
  const text = at("say").value, sampling = readSampling();
  if (working !== null || text === "" || sampling === null) return;
  show("");
  working = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  at("say").value = "";
  const problem = await ask(text, sampling);
  working = null;
  at("send").disabled = false;
  at("stop").disabled = true;
  show(problem);
  if (problem !== "" && at("say").value === "") at("say").value = text;
  at("say").focus();
}

const stop = () => { if (working !== null) working.abort(); };

// ---- The server ----

const metric = (text, name) => {
  const found = text.match(new RegExp("^vllm:" + name + "(?:\\{[^}]*\\})? (\\S+)$", "m"));
  return found === null ? NaN : Number(found[1]);
};

let before = null;

async function look() {
  if (!document.hidden) {
    try {
      const response = await call("/metrics");
      if (!response.ok) throw new Error("the server says " + response.status);
      const text = await response.text(), now = performance.now(), tokens = metric(text, "generation_tokens_total");
      if (before !== null) {
        const speed = (tokens - before.tokens) / (now - before.now) * 1e3;
        at("served").textContent = speed.toFixed(speed < 100 ? 1 : 0) + " tokens a second";
      }
      before = {tokens, now};
      at("queue").textContent = metric(text, "num_requests_running") + ", " + metric(text, "num_requests_waiting");
      at("cache").textContent = (metric(text, "kv_cache_usage_perc") * 100).toFixed(0) + " % used";
    } catch (e) {
      before = null;
      for (const id of ["served", "queue", "cache"]) at(id).textContent = "unknown";
    }
  }
  setTimeout(look, 1000);
}

async function findModel() {
  try {
    const response = await callWithKey("/v1/models");
    if (!response.ok) throw new Error(await problemOf(response));
    const model = (await response.json()).data[0];
    modelId = model.id;
    at("model").textContent = model.id + ", context of " + model.max_model_len + " tokens";
    const info = await call("/tokenizer_info");
    if (info.ok && (await info.json()).chat_template === null) {
      at("mode").value = "text";
      at("mode").options[0].disabled = true;
    }
  } catch (e) {
    at("model").textContent = "no model: " + e.message;
    setTimeout(findModel, 2000);
  }
}

// ---- Input ----

at("ask").addEventListener("submit", event => { event.preventDefault(); send(); });
at("sampling").addEventListener("submit", event => event.preventDefault());
at("stop").addEventListener("click", stop);
at("say").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", event => { if (event.key === "Escape" && !at("key-dialog").open) stop(); });
at("new").addEventListener("click", () => {
  stop();
  said = [];
  at("log").replaceChildren();
  show("");
  at("say").focus();
});

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  at("theme").textContent = "Theme: " + theme;
  remember("theme", theme);
}
at("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  setTheme(themes[(themes.indexOf(now) + 1) % themes.length]);
});
setTheme(recall("theme") ?? "system");
findModel().then(look);
