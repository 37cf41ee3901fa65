// Small pieces of the page that every part uses.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A share as a percentage, a number with one decimal, or a dash. */
export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);
export const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));

/** A method as `name (k 4)`. */
export const methodText = (method) =>
  method.num_speculative_tokens ? `${method.spec_method} (k\u00a0${method.num_speculative_tokens})` : method.spec_method;

/** Shows the outcome of an action where the person looks; screen readers say it. */
export function say(element, text, bad = false) {
  element.textContent = text;
  element.classList.toggle("bad", bad);
}

/** Runs an action of a form: one at a time, with its outcome in the form's `.result`. */
export function onSubmit(form, action) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button[type=submit]");
    const result = form.querySelector(".result");
    button.disabled = true;
    say(result, "Asking the server …");
    try {
      const outcome = await action(form);
      if (typeof outcome === "string") say(result, outcome);
    } catch (error) {
      say(result, error.message, true);
    } finally {
      button.disabled = false;
    }
  });
}

/** Sets a select's options, and keeps what the person chose. */
export function setOptions(select, values, preferred) {
  const same = select.options.length === values.length && values.every((value, i) => select.options[i].value === value);
  if (same) return;
  const chosen = select.value;
  select.replaceChildren(...values.map((value) => new Option(value, value)));
  if (values.includes(chosen)) select.value = chosen;
  else if (values.includes(preferred)) select.value = preferred;
}

/** A table row of cells, each a text or an element. */
export function row(...cells) {
  const line = document.createElement("tr");
  line.append(...cells.map((cell) => {
    if (cell instanceof HTMLTableCellElement) return cell;
    const made = document.createElement("td");
    made.append(cell);
    return made;
  }));
  return line;
}

/** Shows rows in a table. On a phone each cell stands below its column's name. */
export function fillTable(table, rows) {
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const line of rows) [...line.cells].forEach((cell, i) => {
    if (cell.colSpan === 1) cell.dataset.title = titles[i] ?? "";
  });
  table.tBodies[0].replaceChildren(...rows);
}

/** A button of a table's row. */
export function rowButton(text, name, attribute) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  button.dataset[attribute] = name;
  button.setAttribute("aria-label", `${text} ${name}`);
  return button;
}

/** The JSON of a field. Throws an error that names the field. */
export function readJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} are not JSON: ${error.message}`);
  }
}

/** The fields of a form that have a value; numbers as numbers. */
export function filled(form, names) {
  const found = {};
  for (const name of names) {
    const field = form.elements[name];
    if (field.value.trim() !== "") found[name] = field.type === "number" ? Number(field.value) : field.value.trim();
  }
  return found;
}
