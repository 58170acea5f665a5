"use strict";
// lab.js - both labs of lab.html: group advantages, small copies of the rules, a few elements, and a function a lab.
// Their fixed text is in template.html. All text is put into the page as text, never as markup.

const place = (id) => document.getElementById(id);

// ---- 1. Rewards and advantages -------------------------------------------------------------------

const sum = (values) => values.reduce((total, value) => total + value, 0);
const mean = (values) => sum(values) / values.length;
const product = (values) => values.reduce((total, value) => total * value, 1);

// The standard deviation of the group itself: divided by G, not by G - 1.
function deviation(values) {
  const center = mean(values);
  return Math.sqrt(mean(values.map((value) => (value - center) ** 2)));
}

// A_i = (R_i - mean) / (std + 1e-6). Equal rewards give exactly 0: nothing can be learned from them.
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
// What shows a part of the state has a method show, which is called after every change. What can have the focus stays
// the same element, so that a key leaves the focus where it was.

function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A row of buttons; those that are on are pressed.
function buttons(legend, names, isOn, onClick) {
  const nodes = names.map((name) => html("button", {type: "button"}, name));
  nodes.forEach((node, i) => node.addEventListener("click", () => onClick(names[i])));
  const row = html("fieldset", {}, html("legend", {}, legend), ...nodes);
  row.show = () => nodes.forEach((node, i) => node.setAttribute("aria-pressed", isOn(names[i])));
  return row;
}

// An input for target[name]; onChange runs after every change of it.
function input(attributes, read, write, event, onChange) {
  const node = html("input", attributes);
  node.show = () => write(node);
  node.addEventListener(event, () => {
    read(node);
    onChange();
  });
  node.show();
  return node;
}

function slider(label, target, name, [low, high], onChange, says = "") {
  const value = html("span", {class: "value"});
  const node = input({type: "range", min: low, max: high, step: 0.05, name, "aria-label": label}, () => {
    target[name] = Number(node.value);
  }, (range) => {
    range.value = target[name];
    value.textContent = target[name].toFixed(2);
  }, "input", onChange);
  const row = html("label", {class: "slider"}, html("span", {}, label), node, value,
    html("span", {class: "soft"}, says));
  row.show = node.show;
  return row;
}

// What is typed is at once a whole number within the bounds; an emptied field waits for more, or to be left.
function numberInput(target, name, [low, high], onChange, attributes = {}) {
  const node = input({type: "number", min: low, max: high, name, ...attributes}, () => {
    if (node.value !== "") target[name] = Math.min(high, Math.max(low, Math.round(Number(node.value))));
  }, (field) => {
    const differs = field.value === "" ? field !== document.activeElement : Number(field.value) !== target[name];
    if (differs) field.value = target[name];
  }, "input", onChange);
  node.addEventListener("change", () => {
    node.value = target[name];
  });
  return node;
}

const signed = (value) => (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(2);
const look = (value) => Math.abs(value) < 0.005 ? "" : value > 0 ? "up" : "down";
const table = (caption, titles, rows) =>
  html("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": caption}, html("table", {},
    html("caption", {}, caption),
    html("tr", {}, ...titles.map((title) => html("th", {scope: "col"}, title))), ...rows));

// A row: the text of a completion or a hack, what else never changes, and behind that the numbers as they stand.
function rowOf(item, fixed, numbers) {
  const text = textOf(item);
  const node = html("tr", {}, html("th", {scope: "row"}, text), ...fixed.map((cell) => html("td", {}, cell)));
  const kept = node.cells.length;
  node.show = () => {
    [text, ...fixed].forEach((cell) => cell.show?.());
    [...node.cells].slice(kept).forEach((cell) => cell.remove());
    node.append(...numbers(item));
  };
  return node;
}

// A cell with a number: data-value holds all its digits, for the test and for the curious.
const cellOf = (value, attributes = {}, ...more) =>
  html("td", {"data-value": value, class: look(value), ...attributes}, signed(value), ...more);
const rewardCell = (reward) => cellOf(reward, {class: "reward"});
const advantageCell = (advantage) =>
  html("td", {"data-value": advantage, class: `advantage ${look(advantage)}`}, bar(advantage), ` ${signed(advantage)}`);

// A bar to the right of the middle for what becomes more likely, to the left for what becomes less.
function bar(advantage) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("viewBox", "0 0 120 12");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
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
  const text = html("pre", {tabindex: 0});
  const notes = html("div", {class: "soft"});
  const node = html("details", {}, html("summary", {}, item.name), text, notes);
  node.show = () => {
    text.textContent = item.text;
    notes.replaceChildren(...(item.notes ?? []).map((note) => html("div", {}, note)));
  };
  return node;
}

// The advantages in short, to be seen beside the controls: the table has them all, so nobody hears them twice.
const chip = (name, advantage) => html("li", {}, html("span", {}, name), bar(advantage),
  html("span", {class: look(advantage)}, signed(advantage)));

// ---- 4. Compose a reward: rules, weights, a group, its advantages --------------------------------

// How scores become one number. A weight of 0 leaves a rule out; only the sum knows how much.
const COMBINE = {
  sum: (scores, weights) => sum(scores.map((score, i) => weights[i] * score)),
  product: (scores, weights) => product(scores.filter((_, i) => weights[i] > 0)),
  minimum: (scores, weights) => Math.min(...scores.filter((_, i) => weights[i] > 0)),
  "soft or": (scores, weights) => 1 - product(scores.filter((_, i) => weights[i] > 0).map((s) => 1 - s)),
};
const JUDGES = {math: judgeMath, format: judgeFormat};
const OWN = "your own text";

function composeAReward(families) {
  const state = {family: null, weights: {}, combine: "sum", counts: {}, own: null};
  let controls = [];
  const familyRow = choice("family", families.map((one) => one.name), (name) => name === state.family.name,
    (name) => choose(families.find((one) => one.name === name)));
  place("families").append(familyRow);

  function choose(family) {
    state.family = family;
    state.own = {name: OWN, text: "", scores: {}, notes: []};
    usePreset(Object.keys(family.presets)[0]);
    useGroup(Object.keys(family.groups)[0]);
    draw();
  }

  // What a preset and a group set.
  const combineOf = (preset) => state.family.presets[preset].combine ?? "sum";
  const weightOf = (preset, rule) => state.family.presets[preset].weights[rule] ?? 0;
  const countOf = (group, name) => Number(state.family.groups[group].includes(name));

  function usePreset(name) {
    for (const rule of ruleNames()) state.weights[rule] = weightOf(name, rule);
    state.combine = combineOf(name);
  }

  function useGroup(name) {
    for (const completion of completions()) state.counts[completion.name] = countOf(name, completion.name);
  }

  const isPreset = (name) => state.combine === combineOf(name)
    && ruleNames().every((rule) => state.weights[rule] === weightOf(name, rule));
  const isGroup = (group) => completions().every(({name}) => state.counts[name] === countOf(group, name));

  const ruleNames = () => Object.keys(state.family.rules);
  const completions = () => [...state.family.completions, state.own];

  function rewardOf(completion) {
    const scores = ruleNames().map((rule) => completion.scores[rule] ?? 0);
    const weights = ruleNames().map((rule) => state.weights[rule]);
    const counted = state.combine === "sum" || weights.some((weight) => weight > 0);
    return counted ? COMBINE[state.combine](scores, weights) : 0;
  }

  // What a row of buttons chooses is shown at once.
  function choice(legend, names, isOn, use) {
    return buttons(legend, names, isOn, (name) => {
      use(name);
      show();
    });
  }

  function draw() {
    const {family} = state;
    const [presets, combine, groups, ...sliders] = [
      choice("presets", Object.keys(family.presets), isPreset, usePreset),
      choice("combine by", Object.keys(COMBINE), (name) => name === state.combine, (name) => {
        state.combine = name;
      }),
      choice("groups", Object.keys(family.groups), isGroup, useGroup),
      ...ruleNames().map((rule) => slider(rule, state.weights, rule, [-1, 1.5], show, family.rules[rule])),
    ];
    const rows = completions().map((completion) => rowOf(completion,
      [numberInput(state.counts, completion.name, [0, 16], show, {"aria-label": `how often: ${completion.name}`})],
      numbersOf));
    controls = [familyRow, presets, combine, groups, ...sliders, ...rows];
    place("family-problem").textContent = family.problem + (family.truth ? `\nThe answer is ${family.truth}.` : "");
    place("weights").replaceChildren(presets, combine, ...sliders);
    place("groups").replaceChildren(groups);
    place("composed").replaceChildren(table("Rewards R, advantages A, and what each rule finds and adds",
      ["completion", "how often", "R", "A", ...ruleNames()], rows));
    place("own").replaceChildren(...ownText());
    show();
  }

  // The reader's own text: judged by the small copies of the rules, or, for a program, by the reader.
  function ownText() {
    const {family, own} = state;
    if (family.own === "by hand") {
      for (const rule of ruleNames()) own.scores[rule] = 0;
      const found = ruleNames().map((rule) => slider(rule, own.scores, rule, [0, 1], show));
      controls.push(...found);
      return [html("h2", {}, "Your own program"),
        html("p", {class: "soft"}, "A page cannot run Python. Say what the rules would find (notebook 2, "
          + "section 7, runs a program), and put it into the group with its count."),
        ...found];
    }
    const area = html("textarea", {rows: 4, "aria-label": OWN,
      placeholder: "<think>..</think><answer>..</answer>"});
    area.addEventListener("input", () => {
      if (own.text === "") state.counts[OWN] ||= 1;
      Object.assign(own, {text: area.value}, JUDGES[family.own](area.value, family.truth));
      show();
    });
    const limits = family.own === "math"
      ? "It is read by a smaller copy of the rules: its answer has to be the same number or the same text "
        + "(grading.py knows far more), and steps and hack are not judged here, so they count 0."
      : "It is read by a copy of the rules.";
    return [html("h2", {}, "Your own text"), area, html("p", {class: "soft"}, limits)];
  }

  // A rule's verdict, and what it contributes to a sum.
  function verdictCell(completion, rule) {
    const score = completion.scores[rule] ?? 0;
    const mark = score === 1 ? "\u2713" : score === 0 ? "\u2717" : score.toFixed(2);
    const part = state.weights[rule] * score;
    const shown = state.combine === "sum" && part !== 0 ? ` ${signed(part)}` : "";
    return html("td", {"data-score": score, "data-part": part}, mark,
      html("span", {class: look(part)}, shown));
  }

  // Each completion stands in the group as often as its count says.
  function group() {
    const members = completions().flatMap((item) => Array(state.counts[item.name]).fill(item));
    const rewards = members.map(rewardOf);
    return {members, rewards, advantages: groupAdvantages(rewards)};
  }

  function numbersOf(completion) {
    const {members, advantages} = group();
    const at = members.indexOf(completion);
    return [rewardCell(rewardOf(completion)), at >= 0 ? advantageCell(advantages[at]) : html("td"),
      ...ruleNames().map((rule) => verdictCell(completion, rule))];
  }

  function show() {
    controls.forEach((control) => control.show());
    const {members, rewards, advantages} = group();
    place("summary").textContent = summary(rewards);
    place("advantages").replaceChildren(...completions().filter((item) => members.includes(item))
      .map((item) => chip(item.name, advantages[members.indexOf(item)])));
  }

  function summary(rewards) {
    if (rewards.length === 0) return "The group is empty.";
    const says = Math.max(...rewards) === Math.min(...rewards)
      ? "All rewards are equal, so all advantages are 0: no gradient."
      : "A = (R \u2212 mean) / (std + 0.000001).";
    return `G = ${rewards.length}, mean ${mean(rewards).toFixed(3)}, std ${deviation(rewards).toFixed(3)}. ${says}`;
  }

  choose(families[0]);
}

// ---- 5. A reasoning reward: one design, and what each design pays for hacks ----------------------

const WEIGHTS = [
  ["w_acc", "answer", 2, "the last box is right"],
  ["w_fmt", "format", 1, "the tagged form, whatever is thought in it"],
  ["w_len", "length", 1, "a bonus for words of thinking"],
  ["w_ramble", "rambling", 1, "taken off for words above the threshold"],
  ["w_lang", "language", 1, "taken off if the thinking mixes scripts"],
  ["w_rep", "repetition", 1, "taken off for phrases said again"],
];

// The terms of a reward, as ReasoningReward and RepetitionReward compute them in Python.
function terms(item, weights) {
  const unread = item.form === "broken" || (item.form === "bare" && weights.needs_tags);
  const repeats = item.form === "tagged" || !weights.needs_tags
    ? Math.max(0, item.repetition - weights.rep_threshold) / (1 - weights.rep_threshold) : 0;
  const repetition = -weights.w_rep * repeats;
  if (unread) return {answer: 0, format: 0, length: 0, rambling: 0, language: 0, repetition};
  const counted = weights.saturates ? Math.min(item.words, weights.len_cap) : item.words;
  const over = item.words / weights.ramble_threshold - 1;
  return {
    answer: weights.w_acc * item.acc,
    format: weights.w_fmt * item.fmt,
    length: weights.w_len * counted / weights.len_cap,
    rambling: -weights.w_ramble * Math.min(1, Math.max(0, over)),
    language: -weights.w_lang * item.mixed,
    repetition,
  };
}

const designed = (item, weights) => sum(Object.values(terms(item, weights)));

// What one step of training would make more likely: read off the advantages, not off the weights.
function diagnosis(advantages) {
  const [short, long, rambling, noTags, wrong, bilingual] =
    advantages.map((advantage) => Math.round(advantage * 1e6));
  const ideal = Math.max(short, long);
  const found = [
    [wrong >= ideal, "a wrong answer in good form is paid like a right one: accuracy will collapse"],
    [rambling >= ideal, "rambling is paid like the ideal: completions will get longer, not better"],
    [bilingual >= ideal, "language mixing is not seen: the thinking may become unreadable"],
    [noTags >= ideal, "the form is worth nothing: the tags will be forgotten"],
  ].filter(([there]) => there).map(([, says]) => says);
  return found.length ? found : ["ordered: the ideal is on top"];
}

function reasoningReward({problem, rollouts, hacks, designs}) {
  const design = {...designs["R1-Zero"], needs_tags: false};
  let chosen = "R1-Zero";

  // A control was moved: the design is the reader's own now.
  function changed() {
    chosen = null;
    show();
  }

  function check(name, label) {
    const node = input({type: "checkbox", name}, () => {
      design[name] = node.checked;
    }, (box) => {
      box.checked = design[name];
    }, "change", changed);
    return [node, html("label", {}, node, ` ${label}`)];
  }

  function limit(name, label) {
    const node = numberInput(design, name, [1, 100000], changed);
    return [node, html("label", {}, `${label} `, node)];
  }

  const presets = buttons("presets", Object.keys(designs), (name) => name === chosen, (name) => {
    Object.assign(design, designs[name], {needs_tags: design.needs_tags});
    chosen = name;
    show();
  });
  const sliders = WEIGHTS.map(([name, label, high, says]) =>
    slider(label, design, name, [0, high], changed, says));
  const limits = [limit("len_cap", "length bonus up to (words)"), check("saturates", "and no further"),
    limit("ramble_threshold", "rambling above (words)"),
    check("needs_tags", "without tags nothing is paid (the chapter's code; its table pays the answer)")];
  const names = Object.keys(terms(rollouts[0], design));
  const group = rollouts.map((item) => rowOf(item, [String(item.words)], numbersOf));
  const paid = hacks.map((hack) => rowOf(hack, [hack.twin], paidFor));
  const controls = [presets, ...sliders, ...limits.map(([node]) => node), ...group, ...paid];

  function show() {
    controls.forEach((control) => control.show());
    const rewards = rollouts.map((item) => designed(item, design));
    const advantages = groupAdvantages(rewards);
    place("reasoning-mean").textContent = `mean ${mean(rewards).toFixed(3)}, std ${deviation(rewards).toFixed(3)}`;
    place("reasoning-advantages").replaceChildren(...rollouts.map((item, i) => chip(item.name, advantages[i])));
    place("diagnosis").textContent = `Diagnosis: ${diagnosis(advantages).join("; ")}.`;
  }

  function numbersOf(item) {
    const advantages = groupAdvantages(rollouts.map((one) => designed(one, design)));
    const parts = terms(item, design);
    return [rewardCell(designed(item, design)), advantageCell(advantages[rollouts.indexOf(item)]),
      ...names.map((name) => cellOf(parts[name]))];
  }

  // What a hack earns under each design, and how much more than its honest twin.
  function paidFor(hack) {
    const twin = rollouts.find((item) => item.name === hack.twin);
    return [design, ...Object.values(designs)].map((weights) => {
      const used = {...weights, needs_tags: design.needs_tags};
      const paid = designed(hack, used);
      const gain = paid - designed(twin, used);
      return cellOf(paid, {class: "", "data-gain": gain},
        html("span", {class: gain > -0.005 ? "down" : "soft"}, ` (${signed(gain)})`));
    });
  }

  place("reasoning-problem").textContent = problem;
  place("design").append(presets, ...sliders, html("p", {}, ...limits.map(([, label]) => label)));
  place("group").append(table("Rewards R, advantages A, and the terms of R",
    ["completion", "words", "R", "A", ...names], group));
  place("hacks").append(table("What each hack is paid, and how much more than its honest completion",
    ["hack", "honest completion", "yours", ...Object.keys(designs)], paid));
  show();
}

const data = JSON.parse(place("data").textContent);
composeAReward(data.families);
reasoningReward(data.reasoning);
