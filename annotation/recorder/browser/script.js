// What a person does in a page, sent to the recorder. Runs in a world of its own in every frame, before the page's scripts: they can
// neither see it nor call what it calls. `ELEMENTS` is sandbox/browser/elements.js, `SIGN` the sign's place, `SECRET_NAMES` what fields
// for secrets are called (secret_names.py); `TELL` takes a JSON text.
//
// What is typed into a password field never leaves the page: a key is sent as a dot. A field that was one once stays one, also while the
// page shows what is in it. Points are pixels of the top page's viewport, as far as frames are of its own origin; in others nothing is
// sent.
((ELEMENTS, SIGN, SECRET_NAMES, TELL) => {
  "use strict";
  if (window.__flywheelRecorder) return;
  window.__flywheelRecorder = true;
  const NAMES = {
    " ": "space", Control: "ctrl", Meta: "meta", Alt: "alt", AltGraph: "altgr", Shift: "shift", Enter: "enter", Tab: "tab", Escape: "escape",
    Backspace: "backspace", Delete: "delete", Insert: "insert", ArrowLeft: "arrowleft", ArrowRight: "arrowright", ArrowUp: "arrowup",
    ArrowDown: "arrowdown", PageUp: "pageup", PageDown: "pagedown", Home: "home", End: "end", CapsLock: "capslock",
  };
  const SECRET = new RegExp(SECRET_NAMES, "iu");
  const wasPassword = new WeakSet();
  const BUTTONS = ["left", "middle", "right"];
  let lastKey = -Infinity;

  const offset = () => {
    let x = 0, y = 0;
    for (let inner = window; inner !== inner.top; inner = inner.parent) {
      const frame = inner.frameElement; // throws, or is null, where the page around it is another's
      if (!frame) return null;
      const box = frame.getBoundingClientRect();
      x += box.left + frame.clientLeft;
      y += box.top + frame.clientTop;
    }
    return [x, y];
  };
  const place = () => {
    try { return offset(); } catch { return null; }
  };

  const isSecretName = (name) => Boolean(name) && SECRET.test(name.replace(/([a-z0-9])([A-Z])/g, "$1 $2"));
  const isSecret = (node) => {
    if (!node || !node.matches || !node.matches("input, textarea, [contenteditable]")) return false;
    if (node.type === "password") wasPassword.add(node);
    if (wasPassword.has(node)) return true;
    const names = [node.name, node.id, node.autocomplete, node.getAttribute("aria-label"), node.placeholder];
    for (const label of node.labels || []) names.push(label.textContent);
    return names.some(isSecretName);
  };
  // Pages that show a password change its field's type; those in shadow roots are known from when they are pressed or have the keyboard.
  new MutationObserver((changes) => {
    for (const { target, oldValue } of changes) if (/^password$/i.test(oldValue || "")) wasPassword.add(target);
  }).observe(document, { subtree: true, attributes: true, attributeFilter: ["type"], attributeOldValue: true });
  window.addEventListener("focusin", (event) => isSecret(event.composedPath()[0]), { capture: true, passive: true });
  const deepest = () => {
    let node = document.activeElement;
    while (node && node.shadowRoot && node.shadowRoot.activeElement) node = node.shadowRoot.activeElement;
    return node;
  };

  const boxOf = (node, [x, y]) => {
    const box = node.getBoundingClientRect();
    return [box.left + x, box.top + y, box.width, box.height].map(Math.round);
  };
  const fields = (root) => [...root.querySelectorAll("*")].flatMap((node) => [node, ...(node.shadowRoot ? fields(node.shadowRoot) : [])]);
  const secrets = (at) => fields(document).filter(isSecret).map((node) => boxOf(node, at));

  // Where the page around a frame is another's, its address is not to be had, and the frame's own says whose it is.
  const topUrl = () => {
    try { return window.top.location.href; } catch { return ""; }
  };

  const tell = (event, details, withElements) => {
    const at = place();
    if (!at || !event.isTrusted) return;
    const message = { ...details, epoch_ms: performance.timeOrigin + event.timeStamp, url: location.href, title: document.title };
    message.origin = window.origin;
    message.top_url = topUrl();
    message.size = [window.top.innerWidth, window.top.innerHeight];
    if (withElements) {
      const elements = ELEMENTS({ exclude: ["[data-flywheel-sign]"], limit: 250 }, []);
      message.elements = elements.map((element) => ({ ...element, x: element.x + at[0], y: element.y + at[1] }));
      message.secrets = secrets(at);
    }
    TELL(JSON.stringify(message));
  };

  const key = (event) => {
    const isDown = event.type === "keydown";
    if (event.isComposing || event.key === "Dead" || event.key === "Process") return;
    const name = NAMES[event.key] || (/^F\d+$/.test(event.key) ? event.key.toLowerCase() : [...event.key].length === 1 ? event.key.toLowerCase() : "");
    if (!name) return;
    const node = deepest(), hides = isSecret(node);
    const isText = [...event.key].length === 1;
    const first = isDown && event.timeStamp - lastKey > 1500;
    lastKey = event.timeStamp;
    tell(event, {
      kind: "key", name: hides && isText && !event.ctrlKey && !event.altKey && !event.metaKey ? "*" : name, is_down: isDown,
      text: isText ? (hides ? "•" : event.key) : "", is_secret: hides, focus: node && node !== document.body ? boxOf(node, place() || [0, 0]) : null,
    }, first || (isDown && !isText));
  };
  const press = (event) => {
    const [x, y] = place() || [0, 0];
    const button = BUTTONS[event.button];
    lastKey = -Infinity;
    if (button) tell(event, { kind: "press", button, is_down: event.type === "pointerdown", x: Math.round(event.clientX + x), y: Math.round(event.clientY + y) }, event.type === "pointerdown");
  };
  let rest = [0, 0];
  const wheel = (event) => {
    const [x, y] = place() || [0, 0];
    const unit = event.deltaMode === 1 ? 33 : event.deltaMode === 2 ? 300 : 1;
    rest = [rest[0] + event.deltaX * unit, rest[1] + event.deltaY * unit];
    const dx = Math.trunc(rest[0] / 33), dy = Math.trunc(rest[1] / 33);
    rest = [rest[0] % 33, rest[1] % 33];
    if (dx || dy) tell(event, { kind: "wheel", dx, dy, x: Math.round(event.clientX + x), y: Math.round(event.clientY + y) }, true);
  };
  for (const type of ["keydown", "keyup"]) window.addEventListener(type, key, { capture: true, passive: true });
  for (const type of ["pointerdown", "pointerup"]) window.addEventListener(type, press, { capture: true, passive: true });
  window.addEventListener("wheel", wheel, { capture: true, passive: true });

  const sign = () => {
    if (window !== window.top || !document.documentElement) return;
    const host = document.createElement("div");
    host.setAttribute("data-flywheel-sign", "");
    host.setAttribute("aria-hidden", "true");
    const root = host.attachShadow({ mode: "closed" });
    const label = document.createElement("div");
    label.style.cssText = `position:fixed;left:0;top:0;width:${SIGN[0]}px;height:${SIGN[1]}px;background:#c00000;color:#fff;` +
      "font:bold 12px/18px sans-serif;text-align:center;z-index:2147483647;pointer-events:none";
    root.append(label);
    window.__flywheelSign = () => {
      const word = window.__flywheelShows || "RECORDING"; // or what the recorder has said by now: PAUSED, EXCLUDED
      label.textContent = word;
      label.style.background = word === "RECORDING" ? "#c00000" : "#555";
    };
    window.__flywheelSign();
    document.documentElement.append(host);
  };
  if (document.documentElement) sign();
  else document.addEventListener("DOMContentLoaded", sign, { once: true });
})
