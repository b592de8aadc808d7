// The review page: shows a recording, sends the person's changes, and shows what is left. Everything that was recorded is set as text.

import { Timeline } from "/files/timeline.js";

const $ = (id) => document.getElementById(id);
let recording = null;
let current = 0;
let drawn = null;
let saved = Promise.resolve();
let timer = 0;

async function call(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "content-type": "application/json", "x-flywheel-review": "1" }, body: JSON.stringify(body),
  };
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  const value = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(value && value.detail || `The server said ${answer.status}.`);
  return value;
}

function notice(text, isWrong = false) {
  $("notice").textContent = text;
  $("notice").classList.toggle("wrong", isWrong);
}

// One change after the other: each is made of what the one before left. Answers whether it was made.
function change(path, body, text) {
  saved = saved.then(async () => {
    try {
      show(await call(path, body));
      notice(text);
      return true;
    } catch (error) {
      notice(String(error.message || error), true);
      return false;
    }
  });
  return saved;
}

const clock = (seconds) => `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;

function described(action) {
  const say = (name, value) => name === "text" ? `“${value}”` : Array.isArray(value) ? value.join("+") : `${name} ${value}`;
  const rest = Object.entries(action.action).map(([name, value]) => say(name, value)).join(", ");
  return `${action.kind.replace("_", " ")} ${rest}`;
}

const timeline = new Timeline($("wave"), () => {
  const span = timeline.span;
  $("delete").disabled = $("silence").disabled = !span;
  $("span").textContent = span ? `${clock(span[0])} – ${clock(span[1])}` : clock(timeline.at);
  const near = span || [timeline.at - 2, timeline.at + 2];
  $("words").textContent = recording.words.filter(([, start, end]) => end > near[0] && start < near[1]).map(([text]) => text).join(" ");
});

function show(value) {
  recording = value;
  $("query").value = value.query;
  const hidden = Object.entries(value.hidden).map(([kind, count]) => `${count} ${kind}`).join(", ");
  $("facts").textContent = `${value.actions.length} actions, ${clock(value.length_s)}, ${value.track}. Taken out: ${hidden || "nothing"}.`;
  $("result").value = value.result;
  const isConfirmed = value.state !== "recorded";
  $("confirm").disabled = isConfirmed;
  $("confirm").textContent = isConfirmed ? "Confirmed" : "I looked through it: it may be uploaded";
  timeline.span = null;
  timeline.show(value);
  timeline.onChange();
  list();
  select(Math.min(current, value.actions.length - 1), false);
}

function list() {
  const items = recording.actions.map((action, index) => {
    const item = document.createElement("li");
    item.tabIndex = -1;
    const picture = document.createElement("img");
    picture.alt = "";
    picture.loading = "lazy";
    if (action.screen_id) picture.src = `/api/screens/${action.screen_id}?small=true`;
    const text = document.createElement("div");
    text.className = "text";
    const did = document.createElement("div");
    did.className = "did";
    did.textContent = `${index + 1}. ${described(action)}`;
    const said = document.createElement("div");
    said.className = "said";
    said.textContent = action.thought || "no thought";
    text.append(did, said);
    item.append(picture, text);
    item.addEventListener("click", () => select(index));
    return item;
  });
  $("actions").replaceChildren(...items);
}

function select(index, move = true) {
  flush();
  current = Math.max(0, index);
  const action = recording.actions[current];
  [...$("actions").children].forEach((item, i) => item.setAttribute("aria-current", String(i === current)));
  draw(null);
  $("target").hidden = true;
  if (!action) {
    $("picture").removeAttribute("src");
    $("what").textContent = "Nothing is left.";
    $("thought").value = $("raw").textContent = "";
    return;
  }
  $("actions").children[current].scrollIntoView({ block: "nearest" });
  if (action.screen_id) $("picture").src = `/api/screens/${action.screen_id}`;
  else $("picture").removeAttribute("src");
  $("what").textContent = `${current + 1}. ${described(action)} — ${action.window}` + (action.hidden.length ? ` (taken out: ${action.hidden.join(", ")})` : "");
  $("thought").value = action.thought;
  $("raw").textContent = action.raw && action.raw !== action.thought ? `heard: ${action.raw}` : "";
  if (move) {
    timeline.moveTo(action.start_s);
    timeline.onChange();
  }
}

function place(element, box) {
  const action = recording.actions[current];
  const size = action && recording.screens[action.screen_id];
  if (!size || !box) return void (element.hidden = true);
  const picture = $("picture"), scale = picture.clientWidth / size[0];
  element.hidden = false;
  element.style.left = `${picture.offsetLeft + picture.clientLeft + box.x * scale}px`;
  element.style.top = `${picture.offsetTop + picture.clientTop + box.y * scale}px`;
  element.style.width = `${box.width * scale}px`;
  element.style.height = `${box.height * scale}px`;
}

function draw(box) {
  drawn = box;
  place($("box"), box);
  $("blacken").disabled = $("blackenall").disabled = !box;
}

function point(event) {
  const picture = $("picture"), edges = picture.getBoundingClientRect();
  const size = recording.screens[recording.actions[current].screen_id];
  const scale = size[0] / picture.clientWidth;
  const inside = (value, most) => Math.round(Math.min(Math.max(0, value), most));
  return [inside((event.clientX - edges.left - picture.clientLeft) * scale, size[0]), inside((event.clientY - edges.top - picture.clientTop) * scale, size[1])];
}

let corner = null;
$("picture").addEventListener("dragstart", (event) => event.preventDefault());
$("picture").addEventListener("load", () => {
  const action = recording.actions[current];
  place($("target"), action && action.target && action.target.box);
});
$("picture").addEventListener("pointerdown", (event) => {
  if (!recording.actions[current]?.screen_id) return;
  $("picture").setPointerCapture(event.pointerId);
  corner = point(event);
});
$("picture").addEventListener("pointermove", (event) => {
  if (!corner) return;
  const [x, y] = point(event);
  draw({ x: Math.min(x, corner[0]), y: Math.min(y, corner[1]), width: Math.abs(x - corner[0]), height: Math.abs(y - corner[1]) });
});
$("picture").addEventListener("pointerup", () => {
  corner = null;
  if (drawn && (drawn.width < 3 || drawn.height < 3)) draw(null);
});

function blacken(everywhere) {
  const screen_id = recording.actions[current].screen_id;
  return change("/api/box", { screen_id, box: drawn, everywhere }, "Blackened, and the old picture erased.");
}
$("blacken").addEventListener("click", () => blacken(false));
$("blackenall").addEventListener("click", () => blacken(true));

function remove(speech_only) {
  if (!timeline.span) return;
  const [start_s, end_s] = timeline.span;
  return change("/api/delete", { span: { start_s, end_s }, speech_only }, `${clock(start_s)} – ${clock(end_s)} is erased.`);
}
$("delete").addEventListener("click", () => remove(false));
$("silence").addEventListener("click", () => remove(true));

// Sends the thought that was typed and not sent yet. Answers whether there was none or it was taken.
async function flush() {
  if (!timer) return true;
  clearTimeout(timer);
  timer = 0;
  const index = current, text = $("thought").value;
  saved = saved.then(() => call("/api/thought", { index, text })).then((value) => {
    recording = value;
    $("confirm").disabled = false;
    $("confirm").textContent = "I looked through it: it may be uploaded";
    const said = $("actions").children[index]?.querySelector(".said");
    if (said) said.textContent = text || "no thought";
    notice("The thought is saved.");
    return true;
  }).catch((error) => {
    notice(String(error.message || error), true);
    return false;
  });
  return saved;
}
$("thought").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(flush, 400);
});
$("thought").addEventListener("blur", flush);

$("result").addEventListener("change", () => change("/api/result", { result: $("result").value }, "Saved."));
// Words that were refused stay to be corrected: what is confirmed is what stands there. Answers whether it is the task's words.
async function rename() {
  const query = $("query").value;
  return !recording || query === recording.query || change("/api/query", { query }, "The task is saved.");
}
$("query").addEventListener("change", rename);
$("query").addEventListener("keydown", (event) => event.key === "Enter" && !event.ctrlKey && $("query").blur());
async function confirm() {
  const was_saved = flush();
  if (!(await rename()) || !(await was_saved)) return;
  await change("/api/confirm", {}, "Confirmed. Upload it with: flywheel record upload");
}
$("confirm").addEventListener("click", confirm);

function play() {
  const audio = $("audio");
  if (!audio.paused) return audio.pause();
  const number = recording.speech.findIndex(([start, length]) => timeline.at < start + length);
  if (number < 0) return notice("There is no sound here.");
  audio.dataset.start = recording.speech[number][0];
  audio.src = `/api/speech/${number}`;
  audio.currentTime = Math.max(0, timeline.at - recording.speech[number][0]);
  audio.play().catch((error) => notice(String(error.message || error), true));
}
$("play").addEventListener("click", play);
$("audio").addEventListener("timeupdate", () => timeline.moveTo(Number($("audio").dataset.start) + $("audio").currentTime));
for (const kind of ["play", "pause"]) $("audio").addEventListener(kind, () => ($("play").textContent = $("audio").paused ? "Play" : "Stop"));

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey) return void confirm();
  if (event.target.matches("textarea, select, button, input")) return;
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  if (step) {
    event.preventDefault();
    select(Math.min(Math.max(0, current + step), recording.actions.length - 1));
  } else if (event.key === "Delete") remove(false);
  else if (event.key === " ") {
    event.preventDefault();
    play();
  } else if (event.key === "Escape") {
    draw(null);
    timeline.choose(null);
  }
});

async function start() {
  try {
    const key = location.hash.slice(1);
    if (key) {
      await call("/login", { key });
      history.replaceState(null, "", "/");
    }
    show(await call("/api/recording"));
    select(0);
    timeline.peaks = await call("/api/peaks");
    timeline.draw();
  } catch (error) {
    notice(String(error.message || error), true);
  }
}
start();
