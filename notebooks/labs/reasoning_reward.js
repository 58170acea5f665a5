
// ---- 4. The lab: one design of a reasoning reward ------------------------------------------------

const design = {...data.designs["R1-Zero"], needs_tags: false};
const WEIGHTS = [
  ["w_acc", "answer", 2, "the last box is right"],
  ["w_fmt", "format", 1, "tags, and 8 characters of derivation between them"],
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

const rewardOf = (item, weights) => sum(Object.values(terms(item, weights)));

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

const results = html("div", {"aria-live": "polite"});
const hacks = html("div");
let chosen = "R1-Zero";

const sliders = WEIGHTS.map(([name, label, high, says]) =>
  slider(label, design, name, [0, high], changed, says));

function numberInput(name, label) {
  const input = html("input", {type: "number", min: 1, name});
  const node = html("label", {}, `${label} `, input);
  node.show = () => {
    input.value = design[name];
  };
  input.addEventListener("change", () => {
    design[name] = Math.max(1, Number(input.value) || 1);
    changed();
  });
  return node;
}

function check(name, label) {
  const input = html("input", {type: "checkbox", name});
  const node = html("label", {}, input, ` ${label}`);
  node.show = () => {
    input.checked = design[name];
  };
  input.addEventListener("change", () => {
    design[name] = input.checked;
    changed();
  });
  return node;
}

const needsTags = check("needs_tags", "without tags nothing is paid (the chapter's code; its table pays the answer)");
const controls = [...sliders, numberInput("len_cap", "length bonus up to (words)"),
  check("saturates", "and no further"), numberInput("ramble_threshold", "rambling above (words)"), needsTags];

const presets = Object.keys(data.designs).map((name) => button(name, () => {
  Object.assign(design, data.designs[name], {needs_tags: design.needs_tags});
  chosen = name;
  show();
}));

// A control was moved: the design is the reader's own now.
function changed() {
  chosen = null;
  show();
}

function show() {
  presets.forEach((node) => node.setAttribute("aria-pressed", node.textContent === chosen));
  controls.forEach((node) => node.show());
  const rewards = data.rollouts.map((item) => rewardOf(item, design));
  const advantages = groupAdvantages(rewards);
  results.replaceChildren(html("div", {class: "scroll"}, groupTable(rewards, advantages)),
    html("p", {}, `mean ${mean(rewards).toFixed(3)}, std ${deviation(rewards).toFixed(3)}`),
    html("p", {id: "diagnosis"}, html("b", {}, "Diagnosis: "), diagnosis(advantages).join("; "), "."));
  hacks.replaceChildren(html("div", {class: "scroll"}, hackTable()));
}

function groupTable(rewards, advantages) {
  const names = Object.keys(terms(data.rollouts[0], design));
  const rows = data.rollouts.map((item, i) => {
    const parts = terms(item, design);
    return row("td", [textOf(item), String(item.words), ...names.map((name) => cellOf(parts[name])),
      cellOf(rewards[i], {class: "reward"}),
      cellOf(advantages[i], {class: `advantage ${look(advantages[i])}`}, " ", bar(advantages[i]))]);
  });
  return html("table", {id: "group"}, row("th", ["completion", "words", ...names, "R", "A"]), ...rows);
}

// What a hack earns under each design, and how much more than its honest twin.
function hackTable() {
  const designs = {...data.designs, "yours": design};
  const rows = data.hacks.map((hack) => {
    const twin = data.rollouts.find((item) => item.name === hack.twin);
    const cells = Object.values(designs).map((weights) => {
      const used = {...weights, needs_tags: design.needs_tags};
      const paid = rewardOf(hack, used);
      const gain = paid - rewardOf(twin, used);
      return cellOf(paid, {class: "", "data-gain": gain},
        html("span", {class: gain > -0.005 ? "down" : "soft"}, ` (${signed(gain)})`));
    });
    return row("td", [textOf(hack), hack.twin, ...cells]);
  });
  return html("table", {id: "hacks"}, row("th", ["hack", "honest completion", ...Object.keys(designs)]), ...rows);
}

main.append(
  html("h1", {}, "Design a reasoning reward"),
  html("p", {}, "Only the outcome can be judged by a rule, so everything else that is wanted, or feared, "
    + "needs a small term of its own. Here are six completions of one problem, under the weights that you "
    + "choose. R is the reward and A the advantage: which of them would one step of training make more likely?"),
  html("pre", {}, data.problem),
  html("h2", {}, "The design"),
  html("fieldset", {}, html("legend", {}, "presets"), ...presets),
  ...controls.slice(0, sliders.length),
  html("p", {}, ...controls.slice(sliders.length)),
  html("h2", {}, "The group"), results,
  html("h2", {}, "What each design pays for hacks"),
  html("p", {}, "The reward of a hack, and in brackets how much more it is than that of the honest completion which it "
    + "imitates. Coloured: the hack pays at least as well, so nothing holds the policy back from it."), hacks,
  html("h2", {}, "Try"),
  html("ol", {},
    html("li", {}, "R1-Zero: which four completions tie? What can training not see?"),
    html("li", {}, "R1: which advantages fall, and is the rambler's below zero?"),
    html("li", {}, "Format only: which completion ties with the right answers?"),
    html("li", {}, "Set the length bonus to 0.30 without a penalty for rambling, then with 0.30. Up to which "
      + "bonus does the purposeful thinker stay ahead?"),
    html("li", {}, "A wrong answer in mixed languages earns 0.1 \u2212 0.5 under R1. What does it earn if it "
      + "breaks its tags? What does that teach?")));
show();
