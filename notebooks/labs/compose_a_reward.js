
// ---- 4. The lab: rules, weights, a group, its advantages -----------------------------------------

// How scores become one number. A weight of 0 leaves a rule out; only the sum knows how much.
const COMBINE = {
  sum: (scores, weights) => sum(scores.map((score, i) => weights[i] * score)),
  product: (scores, weights) => product(scores.filter((_, i) => weights[i] > 0)),
  minimum: (scores, weights) => Math.min(...scores.filter((_, i) => weights[i] > 0)),
  "soft or": (scores, weights) => 1 - product(scores.filter((_, i) => weights[i] > 0).map((s) => 1 - s)),
};
const JUDGES = {math: judgeMath, format: judgeFormat};

// The state of the page: a family, its weights, how scores are combined, and the group.
const state = {family: null, weights: {}, combine: "sum", counts: {}, own: null};
const OWN = "your own text";

function choose(family) {
  state.family = family;
  state.own = {name: OWN, text: "", scores: {}, notes: []};
  const [firstPreset] = Object.values(family.presets);
  const [firstGroup] = Object.values(family.groups);
  usePreset(firstPreset);
  useGroup(firstGroup);
  draw();
}

function usePreset(preset) {
  for (const rule of Object.keys(state.family.rules)) state.weights[rule] = preset.weights[rule] ?? 0;
  state.combine = preset.combine ?? "sum";
}

function useGroup(names) {
  state.counts = {};
  for (const name of names) state.counts[name] = 1;
}

const ruleNames = () => Object.keys(state.family.rules);
const completions = () => [...state.family.completions, state.own];

function rewardOf(completion) {
  const scores = ruleNames().map((rule) => completion.scores[rule] ?? 0);
  const weights = ruleNames().map((rule) => state.weights[rule]);
  const counted = state.combine === "sum" || weights.some((weight) => weight > 0);
  return counted ? COMBINE[state.combine](scores, weights) : 0;
}

// Each completion stands in the group as often as its count says.
function group() {
  return completions().flatMap((item) => Array(state.counts[item.name] ?? 0).fill(item));
}

const buttons = (legend, names, isOn, onClick) => {
  const nodes = names.map((name) => button(name, () => onClick(name)));
  nodes.forEach((node, i) => node.setAttribute("aria-pressed", isOn(names[i])));
  return html("fieldset", {}, html("legend", {}, legend), ...nodes);
};

const results = html("div", {"aria-live": "polite"});

function draw() {
  const {family} = state;
  const names = data.families.map((one) => one.name);
  main.replaceChildren(
    html("h1", {}, "Compose a reward"),
    html("p", {}, "Choose a family of tasks, what each rule is worth, and which completions make up a "
      + "group. The verdicts on the prepared completions are those of the project's verifiers; the page "
      + "does the rest: each rule's contribution, the reward R, and the advantage A within the group."),
    buttons("family", names, (name) => name === family.name,
      (name) => choose(data.families.find((one) => one.name === name))),
    html("pre", {}, family.problem + (family.truth ? `\nThe answer is ${family.truth}.` : "")),
    html("h2", {}, "Weights"),
    buttons("presets", Object.keys(family.presets), () => false, (name) => {
      usePreset(family.presets[name]);
      draw();
    }),
    buttons("combine by", Object.keys(COMBINE), (name) => name === state.combine, (name) => {
      state.combine = name;
      draw();
    }),
    html("p", {class: "soft"}, "A sum adds weight times score. The others only ask which weights are above 0: "
      + "of these rules they take the product of the scores, the lowest score, or (soft or) 1 minus the product "
      + "of all (1 \u2212 score)."),
    ...ruleNames().map((rule) =>
      slider(rule, state.weights, rule, [-1, 1.5], show, family.rules[rule])),
    html("h2", {}, "The group"),
    buttons("groups", Object.keys(family.groups), () => false, (name) => {
      useGroup(family.groups[name]);
      draw();
    }),
    results, ownText(),
    html("h2", {}, "What to look for"),
    html("ul", {},
      html("li", {}, "A sum pays the form of a wrong answer, and so gives a slope to climb. A product "
        + "pays nothing until all is right."),
      html("li", {}, "An advantage changes its sign at the mean of the group, not at zero. The same "
        + "completion is pushed up in one group and down in another."),
      html("li", {}, "Where all rewards are equal the advantages are 0, and nothing is learnt from the group."),
      html("li", {}, "Tests give fractions; most rules give 0 or 1.")));
  show();
}

// The reader's own text: judged by the small copies of the rules, or, for a program, by the reader.
function ownText() {
  if (state.family.own === "by hand") {
    return html("div", {}, html("h2", {}, "Your own program"),
      html("p", {class: "soft"}, "A page cannot run Python. Say what the rules would find (notebook 2, "
        + "section 7, runs a program), and put it into the group with its count."),
      ...ruleNames().map((rule) => {
        state.own.scores[rule] ??= 0;
        return slider(rule, state.own.scores, rule, [0, 1], show);
      }));
  }
  const area = html("textarea", {rows: 4, "aria-label": OWN,
    placeholder: "<think>..</think><answer>..</answer>"});
  area.value = state.own.text;
  area.addEventListener("input", () => {
    const isNew = state.own.text === "";
    const {scores, notes} = JUDGES[state.family.own](area.value, state.family.truth);
    Object.assign(state.own, {text: area.value, scores, notes});
    if (isNew) state.counts[OWN] ??= 1;
    show();
  });
  const limits = state.family.own === "math"
    ? "It is read by a smaller copy of the rules: its answer has to be the same number or the same text "
      + "(grading.py knows far more), and steps and hack are not judged here, so they count 0."
    : "It is read by a copy of the rules.";
  return html("div", {}, html("h2", {}, "Your own text"), area, html("p", {class: "soft"}, limits));
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

function countInput(completion) {
  const input = html("input", {type: "number", min: 0, max: 16,
    "aria-label": `how often: ${completion.name}`});
  input.value = state.counts[completion.name] ?? 0;
  input.addEventListener("change", () => {
    const wanted = Math.round(Number(input.value)) || 0;
    state.counts[completion.name] = Math.min(16, Math.max(0, wanted));
    show();
  });
  return input;
}

function show() {
  const members = group();
  const rewards = members.map(rewardOf);
  const advantages = groupAdvantages(rewards);
  const rows = completions().map((completion) => {
    const place = members.indexOf(completion);
    const inGroup = place >= 0;
    const advantage = inGroup ? advantages[place] : null;
    return row("td", [textOf(completion), countInput(completion),
      ...ruleNames().map((rule) => verdictCell(completion, rule)),
      cellOf(rewardOf(completion), {class: "reward"}),
      inGroup ? cellOf(advantage, {class: `advantage ${look(advantage)}`}, " ", bar(advantage)) : ""]);
  });
  const opened = [...results.querySelectorAll("details")].map((node) => node.open);
  results.replaceChildren(html("div", {class: "scroll"}, html("table", {},
    row("th", ["completion", "how often", ...ruleNames(), "R", "A"]), ...rows)), summary(rewards));
  [...results.querySelectorAll("details")].forEach((node, i) => {
    node.open = opened[i] ?? false;
  });
}

function summary(rewards) {
  if (rewards.length === 0) return html("p", {}, "The group is empty.");
  const spread = deviation(rewards);
  const says = Math.max(...rewards) === Math.min(...rewards)
    ? "All rewards are equal, so all advantages are 0: no gradient."
    : "A = (R \u2212 mean) / (std + 0.000001).";
  return html("p", {id: "summary"}, `G = ${rewards.length}, mean ${mean(rewards).toFixed(3)}, `
    + `std ${spread.toFixed(3)}. ${says}`);
}

choose(data.families[0]);
