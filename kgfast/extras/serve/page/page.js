"use strict";
const [form, served, ids, known, error, found] =
  ["form", "#served", "#ids", "#known", "#error", "#found"].map((it) => document.querySelector(it));
const field = form.elements, ROLES = ["heads", "relations", "tails"];
let hasNames = false, asking = new AbortController();

// Text of the server becomes text of the page, and never HTML.
function made(tag, text, kind) {
  const element = document.createElement(tag);
  element.textContent = text ?? "";
  if (kind) element.className = kind;
  return element;
}

async function fetched(path, body, signal) {
  const response = await fetch(path, body && {method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(body), signal});
  const text = await response.text();  // of a busy server: no JSON
  if (response.ok) return JSON.parse(text);
  const {field, error} = text.startsWith("{") ? JSON.parse(text) : {error: text};
  throw new Error((field ? field + ": " : "") + error);
}

// With names, "#3" is the id 3, as "3" may be a name.
function entry(text) {
  const id = (hasNames ? /^#(\d+)$/ : /^#?(\d+)$/).exec(text);
  return id ? Number(id[1]) : text;
}

function table({predicted, filtered, answers: [rows]}, asked) {
  if (!rows.length) return made("p", "No candidate is left.");
  const columns = ["name", "label", "id", "score", "probability"];
  const shown = columns.filter((it) => rows.some((row) => row[it] != null));
  const kind = (it) => (it === "name" || it === "label" ? "text" : "");
  const value = (it) => (Number.isInteger(it) ? it : it?.toPrecision?.(6) ?? it);
  const element = made("table"), note = filtered ? ", known triples left out" : "";
  element.append(made("caption", `Predicted: the ${predicted} of (${asked.join(", ")})${note}`));
  const head = element.createTHead().insertRow(), content = element.createTBody();
  head.append(...shown.map((it) => made("th", it, kind(it))));
  for (const row of rows)
    content.insertRow().append(...shown.map((it) => made("td", value(row[it]), kind(it))));
  return element;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  asking.abort();
  const {signal} = (asking = new AbortController());
  const asked = ROLES.map((it) => field[it].value.trim());
  const body = {include_known: field.include_known.checked};
  ROLES.forEach((it, place) => { if (asked[place]) body[it] = entry(asked[place]); });
  if (field.k.value) body.k = Number(field.k.value);
  try {
    found.replaceChildren(table(await fetched("topk", body, signal), asked.map((it) => it || "?")));
    error.textContent = "";
  } catch (failure) {
    if (signal.aborted) return;
    error.textContent = failure.message;
    found.replaceChildren();
  }
});

async function start() {
  const {model, entities, relations, known_triples, names, labels, max_k} = await fetched("health");
  hasNames = names;
  const facts = {model, entities, relations, "known triples": known_triples, names, labels};
  for (const [name, it] of Object.entries(facts)) {
    const fact = served.appendChild(made("div"));
    const text = it === true ? "yes" : it ? it.toLocaleString("en") : "none";
    fact.append(made("dt", name), " ", made("dd", text));
  }
  field.include_known.parentElement.hidden = known_triples === null;
  ids.textContent = names ? "#3 is the row with id 3." : "Rows have ids.";
  if (!names) return;
  const every = {heads: 0, tails: 0, k: Math.min(relations, max_k), include_known: true};  // where relations have scores
  const [rows] = (await fetched("topk", every).catch(() => ({answers: [[]]}))).answers;
  known.append(...rows.map((it) => new Option(it.label ?? "", it.name)));
}
start().catch((failure) => { error.textContent = failure.message; });
