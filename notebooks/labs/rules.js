"use strict";
// rules.js - what both labs share: group advantages, small copies of the rules, and a few elements.
// All text is put into the page as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("page");

// ---- 1. Rewards and advantages -------------------------------------------------------------------

const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;
const product = (values) => values.reduce((total, value) => total * value, 1);

// The standard deviation of the group itself: divided by G, not by G - 1.
function deviation(values) {
  const center = mean(values);
  return Math.sqrt(mean(values.map((value) => (value - center) ** 2)));
}

// A_i = (R_i - mean) / (std + 1e-6). Equal rewards give exactly 0: nothing can be learnt from them.
function groupAdvantages(rewards) {
  if (rewards.length === 0) return [];
  if (Math.max(...rewards) === Math.min(...rewards)) return rewards.map(() => 0);
  const center = mean(rewards);
  const scale = deviation(rewards) + 1e-6;
  return rewards.map((reward) => (reward - center) / scale);
}

// ---- 2. Small copies of the rules of verifiers.py, for a text of the reader's own ----------------

// [think, answer] of <think>..</think><answer>..</answer>, each tag once and in this order, or null.
function splitTags(text) {
  const inside = "((?:(?!</?(?:think|answer)>)[^])*)";
  const form = new RegExp(`^\\s*<think>${inside}</think>\\s*<answer>${inside}</answer>\\s*$`);
  const found = form.exec(text);
  return found && [found[1], found[2]];
}

// What the last \boxed{..} holds, or null. A malformed last box is no answer.
function lastBox(text) {
  const starts = [...text.matchAll(/\\(?:boxed|fbox)(?![A-Za-z])\s*/g)];
  if (starts.length === 0) return null;
  const last = starts[starts.length - 1];
  const open = last.index + last[0].length;
  if (text[open] !== "{") return null;
  let depth = 0;
  for (let at = open; at < text.length; at += 1) {
    if (text[at] === "\\") at += 1;                 // \{ and \} are content, not braces
    else if (text[at] === "{") depth += 1;
    else if (text[at] === "}") depth -= 1;
    if (depth === 0) return text.slice(open + 1, at).trim();
  }
  return null;
}

// A whole number or a decimal -> its value; anything else -> null. Not 4/2: it is not worked out.
function numberOf(text) {
  return /^[+-]?\d+(?:\.\d+)?$/.test(text.trim()) ? Number(text) : null;
}

// Far less than grading.py: the same number, or the same text.
function sameAnswer(answer, truth) {
  if (answer === null) return false;
  const value = numberOf(answer);
  return value === null ? answer === truth : value === numberOf(truth);
}

function judgeMath(text, truth) {
  const tags = splitTags(text);
  const box = tags && lastBox(tags[1]);
  return {
    scores: {
      format: Number(tags !== null),
      answer: Number(sameAnswer(box, truth)),
      think_length: Number(tags !== null && tags[0].trim().length >= 8),
    },
    notes: [`read as the answer: ${box || "nothing"}`],
  };
}

// The body of one call is JSON with "name": "search" and "arguments": {"query": some text}.
function isGoodCall(body) {
  let call;
  try {
    call = JSON.parse(body);
  } catch {
    return false;
  }
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject(call) && Object.keys(call).sort().join() === "arguments,name"
    && call.name === "search" && isObject(call.arguments) && typeof call.arguments.query === "string";
}

function judgeFormat(text) {
  const tags = splitTags(text);
  const after = text.slice(text.lastIndexOf("</think>") + 1);   // a call in the thinking is a thought
  const bodies = after.split("<tool_call>").slice(1);
  const good = bodies.filter((body) =>
    body.includes("</tool_call>") && isGoodCall(body.split("</tool_call>")[0]));
  return {
    scores: {
      structure: Number(tags !== null),
      think_length: Number(tags !== null && tags[0].trim().length >= 8),
      call: good.length / Math.max(1, bodies.length),
    },
    notes: [`${good.length} of ${bodies.length} calls are well-formed`],
  };
}

// ---- 3. Elements ---------------------------------------------------------------------------------

function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function button(text, onClick) {
  const node = html("button", {type: "button"}, text);
  node.addEventListener("click", onClick);
  return node;
}

// A slider for target[name]; onChange runs after every move.
function slider(label, target, name, [low, high], onChange, says = "") {
  const input = html("input", {type: "range", min: low, max: high, step: 0.05, name});
  const output = html("output");
  const node = html("label", {class: "slider"}, html("span", {}, label), input, output,
    html("span", {class: "soft"}, says));
  node.show = () => {
    input.value = target[name];
    output.textContent = target[name].toFixed(2);
  };
  input.addEventListener("input", () => {
    target[name] = Number(input.value);
    node.show();
    onChange();
  });
  node.show();
  return node;
}

const signed = (value) => (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(2);
const look = (value) => Math.abs(value) < 0.005 ? "" : value > 0 ? "up" : "down";
const row = (tag, cells) => html("tr", {}, ...cells.map((cell) =>
  cell instanceof Node && /^T[DH]$/.test(cell.tagName) ? cell : html(tag, {}, cell)));

// A cell with a number: data-value holds all its digits, for the test and for the curious.
const cellOf = (value, attributes = {}, ...more) =>
  html("td", {"data-value": value, class: look(value), ...attributes}, signed(value), ...more);

// A bar to the right of the middle for what becomes more likely, to the left for what becomes less.
function bar(advantage) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("viewBox", "0 0 120 12");
  const part = (tag, attributes) => {
    const node = drawing.appendChild(document.createElementNS(space, tag));
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  };
  const width = Math.min(60, Math.abs(advantage) * 20);
  part("rect", {class: look(advantage), x: advantage < 0 ? 60 - width : 60, y: 2, width, height: 8});
  part("line", {x1: 60, x2: 60, y1: 0, y2: 12});
  return drawing;
}

function textOf(item) {
  return html("details", {}, html("summary", {}, item.name), html("pre", {}, item.text),
    ...(item.notes ?? []).map((note) => html("div", {class: "soft"}, note)));
}
