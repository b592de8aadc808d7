// Forms in dialogs, made of a list of fields: {name, label, kind, value, hint, required, ...}. Kinds: text, area, number, share (0 to 1),
// choice (options), check, lines (a list, one a line). `check(text)` tells what a value means, asynchronously.

import { ask, cancel_button, make, ok_button, toast } from "/pages/dom.js";

/** The values by name, or null. `send(values)` may refuse by throwing: the dialog then stays open and says why. */
export async function ask_form({ title, fields, ok = "Save", send, wide = false }) {
  const problem = make("p", { class: "note bad", role: "alert", hidden: true });
  const submit = ok_button(ok, "ok", "primary");
  let values = null;
  await ask({
    title, wide, body: [problem, make("div", { class: wide ? "fields" : "stack" }, fields.map(field_node))], buttons: [cancel_button(), submit],
    on_open: (dialog) => {
      const answer = dialog.answer;
      dialog.answer = async (value) => {
        const read = read_values(dialog, fields);
        submit.disabled = true;
        try {
          values = (await send(read)) ?? read;
        } catch (error) {
          submit.disabled = false;
          problem.hidden = false;
          problem.textContent = error.message;
          return;
        }
        answer(value);
      };
      dialog.querySelector("input, textarea, select")?.focus();
    },
  });
  return values;
}

/** Something that is shown once, with a button that copies it. */
export function show_once({ title, words, label, value, id }) {
  const field = make("input", { id, class: "mono", readonly: true, value, on: { focus: (event) => event.target.select() } });
  const copy = make("button", { type: "button", class: "primary", on: { click: () => copy_text(field) } }, "Copy");
  return ask({ title, wide: true, body: [make("p", {}, words), make("label", { for: id }, label), field], buttons: [cancel_button("Close"), copy], on_open: () => field.focus() });
}

/** What a field shows, into the clipboard. */
export async function copy_text(field) {
  try {
    await navigator.clipboard.writeText(field.value);
  } catch {
    // A page that was not loaded over TLS may not ask for the clipboard; what is selected may still be copied.
    field.select();
    if (!document.execCommand("copy")) return toast("The browser does not let this page copy: press Ctrl C.", "warn");
  }
  toast("Copied.", "good");
}

function field_node(field) {
  const id = `field-${field.name}`;
  const hint = field.hint ? make("span", { class: "quiet small", id: `${id}-hint` }, field.hint) : null;
  const shared = { id, name: field.name, required: field.required, "aria-describedby": hint ? `${id}-hint` : null, disabled: field.disabled };
  if (field.kind === "check") {
    const box = make("input", { ...shared, type: "checkbox" });
    box.checked = Boolean(field.value);
    return make("div", { class: "field" }, make("label", { class: "check", for: id }, box, field.label), hint);
  }
  return make("div", { class: field.kind === "area" ? "field full" : "field" }, make("label", { for: id }, field.label), checked(field, input_node(field, shared)), hint,
    field.check && make("span", { class: "small", role: "status", id: `${id}-said` }));
}

function checked(field, node) {
  if (field.check) {
    node.addEventListener("change", async () => {
      const said = node.closest(".field").querySelector("[role=status]");
      try {
        said.textContent = await field.check(node.value);
      } catch (error) {
        said.textContent = error.message;
      }
    });
  }
  return node;
}

function input_node(field, shared) {
  const { kind = "text", value } = field;
  if (kind === "area" || kind === "lines") {
    return make("textarea", { ...shared, rows: field.rows ?? 4, maxlength: field.max ?? 20000, value: kind === "lines" ? (value ?? []).join("\n") : value ?? "" });
  }
  if (kind === "choice") {
    return make("select", shared, field.options.map(([option, text]) => {
      const node = make("option", { value: option }, text ?? option);
      node.selected = option === value;
      return node;
    }));
  }
  if (kind === "share") {
    const shown = make("output", { for: shared.id, class: "small quiet" }, Number(value).toFixed(2));
    const range = make("input", { ...shared, type: "range", min: "0", max: "1", step: "0.01", value: String(value), on: { input: (event) => (shown.textContent = Number(event.target.value).toFixed(2)) } });
    return make("div", { class: "row" }, range, shown);
  }
  const bounds = kind === "number" ? { type: "number", min: field.min, max: field.max, step: field.step ?? "any" } : { type: kind, maxlength: field.max ?? 2000, autocomplete: field.autocomplete ?? "off" };
  return make("input", { ...shared, ...bounds, value: value ?? "" });
}

function read_values(dialog, fields) {
  const values = {};
  for (const field of fields) {
    const node = dialog.querySelector(`#field-${field.name}`);
    if (field.disabled) continue;
    if (field.kind === "check") values[field.name] = node.checked;
    else if (field.kind === "number" || field.kind === "share") values[field.name] = Number(node.value);
    else if (field.kind === "lines") values[field.name] = node.value.split("\n").map((line) => line.trim()).filter(Boolean);
    else values[field.name] = field.kind === "area" ? node.value : node.value.trim();
  }
  return values;
}
