// Runs in an isolated world of every document, before the page's own scripts. Keeps native popups shut: they are windows of their own,
// which screenshots do not show and begin-frame control does not draw. A drop-down is chosen from by keyboard or by the select action.
// Tells what is copied: the browser's clipboard is one for all its sessions, so each session keeps its own (sandbox/browser/cdp/clipboard.py); for the same
// reason the middle button does not paste. `pickers` are the input types whose picker stays shut. `images` are loaded, and kept, before the
// document's load event: where the page shows one later on, it is there at once, not some unpredictable moment after. `isDrawn`: the page
// asks for every frame. One that stands still is left out of a frame that comes just after something changed in it.
((pickers, images, isDrawn) => {
  const draw = () => requestAnimationFrame(draw);
  if (isDrawn) draw();
  globalThis.flywheelImages = images.map((source) => Object.assign(new Image(), {src: source}));

  const isDropDown = (node) => node instanceof HTMLSelectElement && !node.multiple && node.size < 2;
  addEventListener("mousedown", (event) => {
    const select = event.target instanceof Element ? event.target.closest("select") : null;
    if (isDropDown(select)) {
      event.preventDefault();
      if (!select.disabled) select.focus();
    }
  }, true);
  addEventListener("mouseup", (event) => {
    if (event.button === 1) event.preventDefault();
  }, true);
  addEventListener("keydown", (event) => {
    const opens = event.key === "F4" || event.key === " " || event.key === "Enter" || (event.altKey && event.key.startsWith("Arrow"));
    if (isDropDown(event.target) && opens) event.preventDefault();
  }, true);
  addEventListener("click", (event) => {
    if (event.target instanceof HTMLInputElement && pickers.includes(event.target.type)) event.preventDefault();
  }, true);

  const selected = () => {
    const field = document.activeElement;
    if (field instanceof HTMLTextAreaElement || (field instanceof HTMLInputElement && field.selectionStart !== null)) {
      return field.type === "password" ? "" : field.value.slice(field.selectionStart, field.selectionEnd);
    }
    return String(getSelection());
  };
  const report = (event) => {
    const text = event.defaultPrevented ? event.clipboardData.getData("text/plain") : selected();
    if (text && typeof flywheelCopied === "function") flywheelCopied(text);
  };
  addEventListener("copy", report);
  addEventListener("cut", report);
})
