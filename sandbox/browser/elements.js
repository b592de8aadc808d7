// Element extraction: what a person sees on a page, as a flat list in reading (document) order. Knows no page and no task; whatever
// a page's widgets need said about them comes in as options. The file is one expression, a function:
//
//   (options, closed) => [{role, text, states, x, y, width, height}, ...]
//
// role    one word: button link text input textarea checkbox radio tab select item header image slider spinner shape
// text    the visible name or value; a password shows one * a character, an empty field its placeholder
// states  of: checked selected focused expanded disabled
// x, y    integer viewport pixels where a click really lands on the element (hit-tested)
//
// Options, all optional:
//   area      [width, height] of the observed part of the viewport, from the top left corner; what lies outside is not seen
//   clip      [left, top, right, bottom]: the observed part instead, where it does not begin at the corner (a frame that is cut off)
//   frames    true: list each frame too, as {role: "frame", frame: its number in `window`, x, y: the corner of its inside, clip}
//   exclude   selectors of subtrees that are not part of the page's content
//   textless  selectors of subtrees whose text is reported elsewhere; their images and shapes are still listed
//   roles     [[selector, role], ...] roles of widgets that their markup does not tell; the first match wins, "" is a plain container
//   names     [[selector, name], ...] what a person calls an icon that has no text
//   states    [[selector, state], ...] states that show only as a style
//   maxText   characters kept of one text (default 2000)
//   limit     elements kept (default 400)
//
// `closed`, optional, is a list of [host, shadow root] for closed shadow roots, which scripts cannot find by themselves.
//
// Only what shows is read: no ids, classes or data attributes, no hidden or covered nodes. Values of scrollable text fields are given
// whole, as accessibility trees do. Frames are not entered: sandbox/browser/window/frames.py asks in each.
((options, closed) => {
  "use strict";
  const [areaWidth, areaHeight] = options.area || [window.innerWidth, window.innerHeight];
  const [areaLeft, areaTop, areaRight, areaBottom] = (options.clip || [0, 0, areaWidth, areaHeight]).map(Math.round);
  const closedRoots = new Map(closed || []);
  const maxText = options.maxText || 2000;
  const limit = options.limit || 400;
  const join = (selectors) => (selectors && selectors.length ? selectors.join(",") : null);
  const exclude = join(options.exclude);
  const textless = join(options.textless);
  const tables = {};
  for (const kind of ["roles", "names", "states"]) {
    const rows = options[kind] || [];
    tables[kind] = { rows, any: join(rows.map((row) => row[0])) };
  }

  const SKIPPED = new Set(["SCRIPT", "STYLE", "TEMPLATE", "NOSCRIPT", "HEAD", "LINK", "META", "BR", "WBR", "DATALIST", "defs", "title"]);
  const BUTTON_TYPES = new Set(["submit", "button", "reset", "image", "file", "color"]);
  const INPUT_ROLES = { checkbox: "checkbox", radio: "radio", range: "slider", number: "spinner" };
  const TAG_ROLES = {
    BUTTON: "button", TEXTAREA: "textarea", SELECT: "select", SUMMARY: "header", IMG: "image", CANVAS: "image", VIDEO: "image",
  };
  const ARIA_ROLES = {
    button: "button", link: "link", checkbox: "checkbox", switch: "checkbox", radio: "radio", tab: "tab", textbox: "input",
    searchbox: "input", combobox: "input", spinbutton: "spinner", slider: "slider", menuitem: "item", menuitemcheckbox: "checkbox",
    menuitemradio: "radio", option: "item", treeitem: "item", img: "image",
  };
  const TYPED = new Set(["input", "textarea", "spinner"]);
  const SVG_SHAPES = new Set(["circle", "ellipse", "rect", "polygon", "polyline", "path", "line", "text"]);
  const COLOURS = {
    black: [0, 0, 0], white: [255, 255, 255], grey: [128, 128, 128], red: [255, 0, 0], lime: [0, 255, 0], green: [0, 128, 0],
    blue: [0, 0, 255], yellow: [255, 255, 0], cyan: [0, 255, 255], magenta: [255, 0, 255], orange: [255, 165, 0],
    pink: [255, 192, 203], purple: [128, 0, 128], olive: [128, 128, 0], brown: [165, 42, 42],
  };
  const HUES = [
    [20, "red"], [45, "orange"], [70, "yellow"], [165, "green"], [195, "cyan"], [260, "blue"], [290, "purple"], [340, "magenta"],
    [360, "red"],
  ];

  const found = [];
  const clean = (text) => (text || "").replace(/\s+/g, " ").trim().slice(0, maxText);
  const classed = (node) => node.id || node.className;

  function look(kind, element) {
    const table = tables[kind];
    if (!table.any || !classed(element) || !element.matches(table.any)) return undefined;
    return table.rows.find((row) => element.matches(row[0]))[1];
  }

  // ---- geometry ----

  function cut(rect, clip) {
    const left = Math.max(rect.left, clip.left), top = Math.max(rect.top, clip.top);
    const right = Math.min(rect.right, clip.right), bottom = Math.min(rect.bottom, clip.bottom);
    return { left, top, right, bottom, width: right - left, height: bottom - top };
  }

  function largest(rects, clip) {
    let best = null;
    for (const rect of rects) {
      const seen = cut(rect, clip);
      if (seen.width > 0.5 && seen.height > 0.5 && (!best || seen.width * seen.height > best.width * best.height)) best = seen;
    }
    return best;
  }

  function lands(element, x, y) {
    const hit = element.getRootNode().elementFromPoint(x, y);
    if (!hit) return false;
    if (hit === element || element.contains(hit)) return true;
    // An outline has no inside, and some things let clicks through: what shows there is what holds them, or its other shapes.
    const style = getComputedStyle(element);
    if (element instanceof SVGElement) return hit.contains(element) || (style.fill === "none" && element.ownerSVGElement.contains(hit));
    return hit.contains(element) && style.pointerEvents === "none";
  }

  const AROUND = [0.5, 0.25, 0.75, 0.1, 0.9];
  function clickPoint(element, rect) {
    for (const spread of [1, AROUND.length]) {
      for (const fy of AROUND.slice(0, spread)) {
        for (const fx of AROUND.slice(0, spread)) {
          const x = Math.min(Math.max(Math.round(rect.left + rect.width * fx), areaLeft), areaRight - 1);
          const y = Math.min(Math.max(Math.round(rect.top + rect.height * fy), areaTop), areaBottom - 1);
          if (lands(element, x, y)) return [x, y];
        }
      }
    }
    return null;
  }

  function add(role, text, states, element, rects, clip) {
    const rect = largest(rects, clip);
    const point = rect && clickPoint(element, rect);
    if (!point || found.length >= limit) return;
    found.push({ role, text, states, x: point[0], y: point[1], width: Math.round(rect.width), height: Math.round(rect.height) });
  }

  // ---- colours and shapes ----

  function parseColour(css) {
    const parts = /^rgba?\(([^)]*)\)$/.exec(css || "");
    if (!parts) return null;
    const [red, green, blue, alpha] = parts[1].split(/[\s,/]+/).map(Number);
    return alpha === 0 ? null : [red, green, blue];
  }

  function colourName(rgb) {
    for (const name in COLOURS) {
      if (COLOURS[name].every((value, i) => Math.abs(value - rgb[i]) <= 6)) return name;
    }
    const [red, green, blue] = rgb.map((value) => value / 255);
    const high = Math.max(red, green, blue), low = Math.min(red, green, blue), spread = high - low;
    if (spread < 0.06) return high > 0.95 ? "white" : high < 0.1 ? "black" : "grey";
    let hue = high === red ? ((green - blue) / spread) % 6 : high === green ? (blue - red) / spread + 2 : (red - green) / spread + 4;
    hue = (hue * 60 + 360) % 360;
    return HUES.find((row) => hue <= row[0])[1];
  }

  function painted(fill, stroke) {
    if (fill) return colourName(fill) + " ";
    return stroke ? colourName(stroke) + " outlined " : null;
  }

  function svgShape(element, style) {
    const tag = element.tagName;
    const colour = painted(parseColour(style.fill), parseColour(style.stroke));
    if (tag === "text") {
      const text = clean(element.textContent);
      return text && colour && (colour === "black " ? text : colour + text);
    }
    if (!colour) return null;
    const box = element.getBoundingClientRect();
    let kind = tag;
    if (tag === "rect") kind = Math.abs(box.width - box.height) < 2 ? "square" : "rectangle";
    if (tag === "polygon") kind = { 3: "triangle", 4: "quadrilateral", 5: "pentagon", 6: "hexagon" }[element.points.length] || "polygon";
    if (tag === "polyline" || tag === "line") kind = "line";
    if (tag === "path") kind = "shape";
    return colour + kind;
  }

  function backdropOf(element) {
    for (let holder = element.parentElement; holder; holder = holder.parentElement) {
      const colour = getComputedStyle(holder).backgroundColor;
      if (parseColour(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  }

  function boxShape(element, style, rect) {
    if (rect.width < 4 || rect.height < 4) return null;
    let fill = parseColour(style.backgroundColor);
    if (fill && style.backgroundColor === backdropOf(element)) fill = null;
    const edged = parseFloat(style.borderTopWidth) > 0 && style.borderTopStyle !== "none" && parseFloat(style.borderLeftWidth) > 0;
    const inside = fill || (edged && parseColour(style.backgroundColor));
    const colour = painted(inside, edged ? parseColour(style.borderTopColor) : null);
    if (!colour) return null;
    const round = parseFloat(style.borderTopLeftRadius) >= (style.borderTopLeftRadius.endsWith("%") ? 50 : rect.width / 2);
    return colour + (round ? "circle" : Math.abs(rect.width - rect.height) < 2 ? "square" : "rectangle");
  }

  // ---- roles, names, states ----

  function roleOf(element, style) {
    const given = look("roles", element);
    if (given !== undefined) return given || null;
    const tag = element.tagName;
    if (tag === "INPUT") return BUTTON_TYPES.has(element.type) ? "button" : INPUT_ROLES[element.type] || "input";
    if (tag === "A" && (element.hasAttribute("href") || style.cursor === "pointer")) return "link";
    if (TAG_ROLES[tag]) return TAG_ROLES[tag];
    const aria = element.getAttribute("role");
    if (aria && ARIA_ROLES[aria]) return ARIA_ROLES[aria];
    if (element.isContentEditable && !(element.parentElement && element.parentElement.isContentEditable)) return "textarea";
    if (element.firstElementChild) return null;
    if (clean(element.textContent)) return style.cursor === "pointer" || element.hasAttribute("onclick") ? "item" : null;
    return style.content.startsWith("url(") || style.backgroundImage.startsWith("url(") ? "image" : null;
  }

  function labelText(element) {
    const by = element.getAttribute("aria-labelledby");
    const other = by && document.getElementById(by.split(" ")[0]);
    return clean(other ? other.innerText : element.getAttribute("aria-label"));
  }

  function textOf(element, role) {
    const name = look("names", element);
    if (name !== undefined) return name;
    const tag = element.tagName;
    if (role === "checkbox" || role === "radio") {
      const label = element.labels && element.labels.length ? clean(element.labels[0].innerText) : "";
      return label || labelText(element) || (tag === "INPUT" ? "" : clean(element.innerText));
    }
    if (tag === "SELECT") return clean(element.selectedOptions.length ? element.selectedOptions[0].label : "");
    if (tag === "INPUT" && role === "button") return clean(element.value) || labelText(element) || clean(element.title || element.alt);
    if (tag === "INPUT" || tag === "TEXTAREA") {
      const value = element.type === "password" ? "*".repeat(element.value.length) : element.value;
      return value ? value.slice(0, maxText) : clean(element.placeholder);
    }
    return clean(element.innerText) || labelText(element) || clean(element.getAttribute("title") || element.getAttribute("alt"));
  }

  function wholeTextSelected(element) {
    try {
      return element.value.length > 0 && element.selectionStart === 0 && element.selectionEnd === element.value.length;
    } catch {
      return false; // an input type without a text selection
    }
  }

  function statesOf(element, role) {
    const states = [];
    const aria = (name) => element.getAttribute("aria-" + name) === "true";
    if (role === "checkbox" || role === "radio" ? element.checked || aria("checked") : false) states.push("checked");
    const focused = document.activeElement === element && (TYPED.has(role) || role === "select" || role === "slider");
    if ((role === "tab" || role === "item") && (element.selected || aria("selected"))) states.push("selected");
    else if (focused && TYPED.has(role) && element.value !== undefined && wholeTextSelected(element)) states.push("selected");
    if (focused) states.push("focused");
    if ((aria("expanded") && role !== "tab") || (element.tagName === "SUMMARY" && element.parentElement.open)) states.push("expanded");
    if (element.disabled || aria("disabled")) states.push("disabled");
    const shown = look("states", element);
    if (shown && !states.includes(shown)) states.push(shown);
    return states;
  }

  // ---- the walk ----

  function walkText(node, clip) {
    const text = clean(node.data);
    if (!text) return;
    const range = document.createRange();
    range.selectNodeContents(node);
    add("text", text, [], node.parentElement, range.getClientRects(), clip);
  }

  function walkLabel(label, clip) {
    // A label whose own box is hidden stands for it: it is what shows and what is clicked.
    const control = label.control;
    if (!control || (control.type !== "checkbox" && control.type !== "radio")) return false;
    const style = getComputedStyle(control);
    if (style.display === "none" || style.visibility === "hidden" || style.opacity === "0" || control.getBoundingClientRect().width < 1) {
      add(control.type, textOf(control, control.type), statesOf(control, control.type), label, label.getClientRects(), clip);
    }
    return true;
  }

  function children(element) {
    const root = element.shadowRoot || closedRoots.get(element);
    if (root) return root.childNodes;
    if (element.tagName === "SLOT" && element.assignedNodes().length) return element.assignedNodes();
    return element.childNodes;
  }

  function walk(element, clip, silent) {
    if (SKIPPED.has(element.tagName) || (exclude && classed(element) && element.matches(exclude))) return;
    const style = getComputedStyle(element);
    if (style.display === "none" || style.opacity === "0") return;
    if (textless && classed(element) && element.matches(textless)) silent = true;
    const visible = style.visibility === "visible";
    const rect = element.getBoundingClientRect();
    const isEmpty = rect.width < 1 || rect.height < 1;
    if (clip !== page && style.position === "fixed") clip = page;

    if (visible && !isEmpty && visit(element, style, rect, clip)) return;
    if (element.tagName === "LABEL" && walkLabel(element, clip)) silent = true;
    if (style.overflowX !== "visible") {
      clip = cut(rect, clip);
      if (clip.width < 1 || clip.height < 1) return;
    }
    for (const child of children(element)) {
      if (child.nodeType === Node.ELEMENT_NODE) walk(child, clip, silent);
      else if (child.nodeType === Node.TEXT_NODE && visible && !silent) walkText(child, clip);
    }
  }

  function visitFrame(element, style, clip) {
    const frame = Array.from({ length: window.length }, (_, i) => i).find((i) => window[i] === element.contentWindow);
    if (frame === undefined) return;
    const box = element.getBoundingClientRect();
    const left = box.left + element.clientLeft + parseFloat(style.paddingLeft);
    const top = box.top + element.clientTop + parseFloat(style.paddingTop);
    const right = box.right - element.clientLeft - parseFloat(style.paddingRight);
    const bottom = box.bottom - element.clientTop - parseFloat(style.paddingBottom);
    const seen = cut({ left, top, right, bottom }, clip);
    if (seen.width < 1 || seen.height < 1) return;
    found.push({ role: "frame", frame, x: left, y: top, clip: [seen.left - left, seen.top - top, seen.right - left, seen.bottom - top] });
  }

  // Lists an element as one thing, if it is one. True where its inside needs no visit.
  function visit(element, style, rect, clip) {
    if (options.frames && (element.tagName === "IFRAME" || element.tagName === "FRAME")) {
      visitFrame(element, style, clip);
      return true;
    }
    if (element instanceof SVGElement) {
      const shape = SVG_SHAPES.has(element.tagName) && svgShape(element, style);
      if (shape) add("shape", shape, statesOf(element, "shape"), element, [rect], clip);
      return SVG_SHAPES.has(element.tagName);
    }
    const role = roleOf(element, style);
    if (role === "select" && (element.multiple || element.size > 1)) {
      const inside = cut(rect, clip);
      for (const option of element.options) {
        add("item", clean(option.label), statesOf(option, "item"), option, option.getClientRects(), inside);
      }
      return true;
    }
    if (role) {
      // The right end of a number field turns into its arrows under the pointer.
      const arrows = element.type === "number" ? Math.min(20, rect.width / 2) : 0;
      const rects = arrows ? [{ ...rect.toJSON(), right: rect.right - arrows }] : element.getClientRects();
      add(role, textOf(element, role), statesOf(element, role), element, rects, clip);
      return true;
    }
    if (!element.firstElementChild && !clean(element.textContent)) {
      const shape = boxShape(element, style, rect);
      if (shape) add("shape", shape, statesOf(element, "shape"), element, [rect], clip);
    }
    return false;
  }

  const page = {
    left: areaLeft, top: areaTop, right: areaRight, bottom: areaBottom, width: areaRight - areaLeft, height: areaBottom - areaTop,
  };
  if (document.body) walk(document.body, page, false);
  return found;
})
