// The live view: lists the sessions, shows the watched one's screen, draws its last actions. Text of models and pages is only ever set as
// text. No state is kept outside this page, and nothing is ever sent but requests to read.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const NUM_DRAWN = 3;
const at = (id) => document.getElementById(id);
let watched = null;
let stream = null;
let detail = null;
let hovered = null;

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function draw(tag, attributes, parent = at("overlay")) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent.append(node);
  return node;
}

function shown(text, length = 160) {
  return text.length <= length ? text : text.slice(0, length - 1) + "…";
}

function setConnection(kind, text) {
  at("connection").className = kind;
  at("connection-text").textContent = text;
}

// ---- the list -----------------------------------------------------------------------------------------------------------------------

function showList(sessions) {
  const list = at("sessions");
  const steps = sessions.reduce((sum, session) => sum + session.num_steps, 0);
  at("summary").textContent = `${sessions.length} ${sessions.length === 1 ? "session" : "sessions"}, ${steps} steps in the current episodes`;
  const present = new Map([...list.children].map((card) => [card.dataset.session, card]));
  for (const session of sessions) {
    const card = present.get(session.session_id) || newCard(session.session_id);
    present.delete(session.session_id);
    list.append(card);
    const [thumb, name, state] = card.children;
    if (session.screenshot_id && thumb.dataset.screen !== session.screenshot_id) {
      thumb.dataset.screen = session.screenshot_id;
      thumb.src = screenAddress(session.session_id, session.screenshot_id);
    }
    thumb.hidden = !session.screenshot_id;
    name.textContent = session.task ? session.task.name : "no task yet";
    state.textContent = session.task ? `seed ${session.seed} · step ${session.num_steps}${session.is_over ? " · over" : ""}` : "waiting for a reset";
    card.setAttribute("aria-current", String(session.session_id === watched));
  }
  for (const card of present.values()) card.remove();
  if (watched === null && sessions.length) watch(sessions[0].session_id);
}

function newCard(sessionId) {
  const card = make("button", "session");
  card.type = "button";
  card.dataset.session = sessionId;
  const thumb = make("img", "thumb");
  thumb.alt = "";
  card.append(thumb, make("b"), make("span"));
  card.addEventListener("click", () => watch(sessionId));
  return card;
}

function screenAddress(sessionId, screenshotId) {
  return `/live/sessions/${encodeURIComponent(sessionId)}/screens/${encodeURIComponent(screenshotId)}`;
}

function follow() {
  const events = new EventSource("/live/events");
  events.onopen = () => setConnection("is-live", "live");
  events.onmessage = (message) => {
    const data = JSON.parse(message.data);
    if (data.closing) setConnection("is-lost", "the server is shutting down");
    else showList(data.sessions);
  };
  events.onerror = () => {
    setConnection("is-lost", "connection lost");
    if (events.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 3000);
  };
}

// ---- the watched session --------------------------------------------------------------------------------------------------------------

function watch(sessionId) {
  if (stream) stream.close();
  watched = sessionId;
  detail = hovered = null;
  for (const card of at("sessions").children) card.setAttribute("aria-current", String(card.dataset.session === sessionId));
  stream = new EventSource(`/live/sessions/${encodeURIComponent(sessionId)}/events`);
  stream.onmessage = (message) => {
    const data = JSON.parse(message.data);
    if (data.ended) leave(data.ended);
    else show(data);
  };
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) leave("it is gone");
  };
}

function leave(why) {
  stream.close();
  setVerdict(`ended: ${why}`, "");
  watched = null;
}

function setVerdict(text, kind) {
  at("verdict").hidden = !text;
  at("verdict").textContent = text;
  at("verdict").className = `badge ${kind}`;
}

function show(data) {
  detail = data;
  at("empty").hidden = true;
  at("watched").hidden = false;
  at("task").textContent = data.task ? `${data.task.source} / ${data.task.name}` : "no task yet";
  at("instruction").textContent = data.instruction;
  if (data.is_over) setVerdict(data.reward > 0 ? `over, reward ${data.reward.toFixed(2)}` : "over, no reward", data.reward > 0 ? "good" : "bad");
  else setVerdict(data.task ? `step ${data.num_steps} of ${data.task.max_steps}` : "", "");
  showScreen();
  showSteps(data.steps);
  const terminal = at("terminal");
  const isAtEnd = terminal.scrollTop + terminal.clientHeight >= terminal.scrollHeight - 8;
  at("terminal-pane").hidden = !data.output;
  terminal.textContent = data.output;
  if (isAtEnd) terminal.scrollTop = terminal.scrollHeight;
}

function showScreen() {
  const image = at("screen");
  const has = Boolean(detail.screen && detail.screenshot_id);
  at("frame").hidden = !has;
  at("no-screen").hidden = has;
  // A session that only prints gets the room for what it prints.
  const printsOnly = !has && Boolean(detail.output);
  at("stage").hidden = at("hovered").hidden = printsOnly;
  at("watched").classList.toggle("prints-only", printsOnly);
  if (!has) return;
  const address = screenAddress(detail.session_id, detail.screenshot_id);
  if (image.getAttribute("src") !== address) image.src = address;
  fit();
  at("overlay").setAttribute("viewBox", `0 0 ${detail.screen.width_px} ${detail.screen.height_px}`);
  redraw();
}

function fit() {
  if (!detail || !detail.screen) return;
  const stage = at("stage");
  const room = Math.min((stage.clientWidth - 28) / detail.screen.width_px, (stage.clientHeight - 28) / detail.screen.height_px);
  const scale = Math.max(0.2, room >= 1 ? Math.min(room, 3) : room);
  at("screen").style.width = `${detail.screen.width_px * scale}px`;
  at("screen").style.height = `${detail.screen.height_px * scale}px`;
}

function showSteps(steps) {
  const list = at("steps");
  list.replaceChildren();
  for (const step of [...steps].reverse()) {
    const item = make("li");
    item.append(make("span", "index", String(step.index)), make("span", "kind", step.action.kind), make("span", "what", describe(step.action)));
    const said = Object.entries(step.info).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
    if (said.length) item.append(make("span", "what said", shown(said.join("\n"), 400)));
    list.append(item);
  }
}

function describe(action) {
  const rest = Object.entries(action).filter(([name, value]) => name !== "kind" && value !== null);
  return shown(rest.map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", "), 600);
}

// ---- what is drawn on the screen ------------------------------------------------------------------------------------------------------

function unit() {
  // One pixel of the display in units of the screen: marks keep their size however large the screen is shown.
  const width = at("screen").clientWidth;
  return width ? detail.screen.width_px / width : 1;
}

function redraw() {
  at("overlay").replaceChildren();
  if (at("show-elements").checked) for (const element of detail.screen.elements) drawElement(element, false);
  const recent = detail.steps.slice(-NUM_DRAWN);
  recent.forEach((step, index) => drawAction(step.action, index < recent.length - 1));
  if (hovered) drawElement(hovered, true);
}

function drawElement(element, isHovered) {
  draw("rect", {
    x: element.x_px - element.width_px / 2, y: element.y_px - element.height_px / 2, width: element.width_px, height: element.height_px,
    class: isHovered ? "element is-hovered" : "element",
  });
}

function drawAction(action, isOlder) {
  const group = draw("g", isOlder ? { class: "is-older" } : {});
  const px = unit();
  const hasPoint = Number.isFinite(action.x) && Number.isFinite(action.y);
  if (action.kind === "drag") {
    for (const kind of ["mark-halo", "mark"]) draw("line", { x1: action.x, y1: action.y, x2: action.to_x, y2: action.to_y, class: kind }, group);
    draw("circle", { cx: action.to_x, cy: action.to_y, r: 5 * px, class: "mark-dot" }, group);
  }
  if (hasPoint) {
    for (const kind of ["mark-halo", "mark"]) draw("circle", { cx: action.x, cy: action.y, r: 11 * px, class: kind }, group);
    draw("circle", { cx: action.x, cy: action.y, r: 2.5 * px, class: "mark-dot" }, group);
  }
  if (!isOlder) drawLabel(labelOf(action), hasPoint ? action : null, px, group);
}

function labelOf(action) {
  if (action.kind === "type") return `type “${shown(action.text, 40)}”`;
  if (action.kind === "hotkey") return action.keys.join(" + ");
  if (action.kind === "scroll") return `scroll ${action.direction}`;
  if (action.kind === "select") return `select “${shown(action.option, 40)}”`;
  if (action.kind === "tool") return action.name;
  if (action.kind === "finished") return shown(`finished ${action.answer}`, 60);
  if (action.kind === "click") return ["", "", "double ", "triple "][action.count] + (action.button === "left" ? "click" : `${action.button} click`);
  return action.kind.replaceAll("_", " ");
}

function drawLabel(text, point, px, group) {
  const { width_px: width, height_px: height } = detail.screen;
  const length = (text.length * 6.9 + 14) * px;
  const x = Math.max(2 * px, Math.min(point ? point.x + 14 * px : 6 * px, width - length - 2 * px));
  const y = Math.max(2 * px, Math.min(point ? point.y + 12 * px : height - 26 * px, height - 22 * px));
  draw("rect", { x, y, width: length, height: 20 * px, rx: 5 * px, class: "label-back" }, group);
  const label = draw("text", { x: 0, y: 0, class: "label", transform: `translate(${x + 7 * px} ${y + 14 * px}) scale(${px})` }, group);
  label.textContent = text;
}

function hover(event) {
  if (!detail || !detail.screen) return;
  const box = at("screen").getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * detail.screen.width_px;
  const y = ((event.clientY - box.top) / box.height) * detail.screen.height_px;
  const inside = detail.screen.elements.filter(
    (element) => Math.abs(element.x_px - x) <= element.width_px / 2 && Math.abs(element.y_px - y) <= element.height_px / 2,
  );
  hovered = inside.reduce((best, element) => (!best || element.width_px * element.height_px <= best.width_px * best.height_px ? element : best), null);
  at("hovered").textContent = hovered
    ? `${hovered.role} “${shown(hovered.text)}” ${hovered.states.join(", ")} at ${hovered.x_px}, ${hovered.y_px}`
    : `${Math.round(x)}, ${Math.round(y)}`;
  redraw();
}

at("frame").addEventListener("mousemove", hover);
at("frame").addEventListener("mouseleave", () => {
  hovered = null;
  at("hovered").textContent = "Point at the screen to see its elements.";
  if (detail && detail.screen) redraw();
});
at("show-elements").addEventListener("change", () => detail && detail.screen && redraw());
window.addEventListener("resize", () => {
  if (!detail || !detail.screen) return;
  fit();
  redraw();
});
follow();
