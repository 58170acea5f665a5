"""claims.py - claims of the chapters and papers, tested on tiny models, each with controls. claim.py explains the
command.

AutoRule's claims are tested in simulated worlds, one for each seed. Notebook 7 shows their results, and notebook 6 the
results of all others. Three settings are chosen on seed 0, because weaker ones show no effect: the bilingual base, the
learning rate of the guessing arms of `boxes`, and the steps and bonuses of `slips`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from notebooks.claims import measures
from notebooks.claims.claim import POINTS, SHARE, Arm, Check, Claim, main
from notebooks.claims.claim import above, as_much, falls, grows, has_none, keeps, longer, more
from notebooks.claims.claim import reaches, rises, stays
from notebooks.command import run_command
from notebooks.models.make_tiny import TINY

METHOD = "--method notebooks/methods"
CONTROL = "--reward notebooks/rewards/guards.py"
START = "--reward notebooks/claims/start.py"
DEFAULT = Arm()
FEW = f"{METHOD}/few.py --train-problems"
COIN = Arm(f"{CONTROL}:coin")

# ---- growth: does thinking grow? -------------------------------------------------------------------
# Source: Reward design, length dynamics.

GROWTH = Claim(
    name="growth",
    sentence="Under a reward for accuracy alone thinking grows by itself.",
    doubt="A base that can correct itself, so that a longer thought of the same kind is more often right.",
    arms={"default": DEFAULT, "random": COIN},
    claim=[
        longer("default", "length", ("default", "length@0"), 0.5),
        longer("default", "length", ("default", "length@30"), 0.2),
        longer("default", "plain length", ("default", "plain length@start"), 0.2),
    ],
    controls=[longer("random", "length", ("random", "length@0"), 0.2, True), rises("default")],
    columns="right@0, right, length@0, length@30, length, works@start, works, plain length@start, plain length",
    panels="right, completion_length, works",
)

# ---- design: with and without penalties ------------------------------------------------------------
# Source: Reward design, language consistency.

DESIGN = Claim(
    name="design",
    sentence="Rewarded for accuracy and form (A), it thinks in two languages and rambles; penalties (B) end both for free.",
    doubt="A base whose rambling is as often right as its plain work.",
    arms={
        "design A": Arm("--reward notebooks/rewards/reasoning.py:r1_zero"),
        "design B": Arm(f"{START}:r1_short"),
        "A, bilingual base": Arm("--reward notebooks/rewards/reasoning.py:r1_zero", "bilingual"),
        "B, bilingual base": Arm(f"{START}:r1_short", "bilingual"),
    },
    claim=[
        more("A, bilingual base", "B, bilingual base", "bilingual"),
        more("design A", "design B", "rambling"),
        as_much("design A", "design B"),
        as_much("A, bilingual base", "B, bilingual base"),
    ],
    controls=[
        reaches("A, bilingual base", "bilingual@start", 0.1, SHARE),
        *(rises(arm, 0.1) for arm in ("design A", "design B")),
    ],
    columns="right@0, right, bilingual@start, bilingual, rambling@start, rambling",
    panels="right, bilingual, rambling",
)

# ---- format: only the form is rewarded -------------------------------------------------------------
# Source: Reward design, reward components.

FORM = Claim(
    name="format",
    sentence="If only the form is rewarded, the reward saturates and accuracy collapses.",
    doubt="Hundreds of steps, in which the habit of working problems out has time to fade.",
    arms={"format only": Arm(f"{CONTROL}:format_only"), "default": DEFAULT},
    claim=[above("format only", "paid", 0.95, 0.05), falls("format only", 0.15)],
    controls=[rises("default")],
    columns="paid@0, paid, right@0, right, length@0, length",
    panels="reward, right, completion_length",
)

# ---- boxes: which box counts? ----------------------------------------------------------------------
# Source: Reward design, reasoning-specific hacks.
# The guessing base is seldom right, so few of its completions earn anything. Its arms therefore get a higher learning
# rate and a larger evaluation.


def guessing(reward):
    return Arm(f"{reward} --eval-problems 500", "guessing", (1e-3,))


def parts_company(arm):
    def change(x):
        return x(arm, "paid") - x(arm, "paid@0") - x(arm, "right") + x(arm, "right@0")

    return Check(f"{arm}: the reward grows by 0.1 more than accuracy", change, 0.1, POINTS)


HOLES = ("any box, guessing", "first box, guessing")
BOXES = Claim(
    name="boxes",
    sentence="A verifier that takes the first box or any is hacked by spamming guesses; one that takes the last is not.",
    doubt="Problems so hard that the base which can work seldom succeeds: there it may be tempted.",
    arms={
        "any box, guessing": guessing(f"{CONTROL}:any_box"),
        "first box, guessing": guessing(f"{CONTROL}:first_box"),
        "last box, guessing": guessing("--reward boxed"),
        "any box": Arm(f"{CONTROL}:any_box"),
        "last box": Arm("--reward boxed"),
    },
    claim=[*map(parts_company, HOLES), *(grows(arm, "boxes", 1.0) for arm in HOLES)],
    controls=[
        stays("last box, guessing", 1.0, "boxes", "boxes@start"),
        as_much("last box", "any box"),
    ],
    columns="paid@0, paid, right@0, right, boxes@start, boxes@max, boxes",
    panels="reward, right, boxes",
)

# ---- problems: is one problem enough? --------------------------------------------------------------
# Source: 9.5 RLVR, 1-shot RLVR.

PROBLEMS = Claim(
    name="problems",
    sentence="One problem suffices to start the training; to finish takes more.",
    doubt="A base that has to learn more than a habit: here any problem teaches to work problems out.",
    arms={
        "1 problem": Arm(f"{FEW} 1"),
        "64 problems": Arm(f"{FEW} 64"),
        "default": DEFAULT,
    },
    claim=[rises("1 problem", 0.2), more("default", "1 problem", by=0.2)],
    controls=[rises("default"), as_much("default", "64 problems")],
    columns="right@0, right, greedy@0, greedy, accuracy, mixed",
    panels="right, accuracy, mixed",
)

# ---- updates: several updates a batch --------------------------------------------------------------
# Source: 9.5 RLVR.

PPO = "--updates-per-batch 4"
CISPO = f"{METHOD}/ratios.py:CISPO {PPO}"
UPDATES = Claim(
    name="updates",
    sentence="Several updates of a batch (x 4) learn faster, and break sooner. Fast: at five times the learning rate.",
    doubt="Ten seeds at the fast rate, where the three of ppo end far apart.",
    arms={
        "default": DEFAULT,
        "ppo x 4": Arm(PPO),
        "gspo x 4": Arm(f"{METHOD}/ratios.py:GSPO {PPO}"),
        "cispo x 4": Arm(CISPO),
        "reinforce x 4": Arm(f"{METHOD}/reinforce.py:Reinforce {PPO}"),
        "ppo x 4, fast": Arm(PPO, rates=(2e-3,)),
        "cispo x 4, fast": Arm(CISPO, rates=(2e-3,)),
    },
    claim=[
        more("ppo x 4", "default", "right@20"),
        more("ppo x 4", "ppo x 4, fast", by=0.3),
        more("cispo x 4", "cispo x 4, fast", by=0.3),
    ],
    controls=[rises(f"{name} x 4") for name in ("ppo", "gspo", "cispo", "reinforce")],
    columns="right@0, right@20, right, greedy, clipped@mean",
    panels="right, clipped",
)

# ---- controls: rewards that know nothing -----------------------------------------------------------
# The control for all other claims. Source of gains under random rewards: Shao et al. 2025, 2506.10947.

CONTROLS = Claim(
    name="controls",
    sentence="A reward that knows nothing of the answer teaches nothing, an inverted one harms.",
    doubt="A base whose dormant habits are right: there such a drift would look like learning.",
    arms={"random": COIN, "inverted": Arm(f"{CONTROL}:inverted"), "default": DEFAULT},
    claim=[stays("random"), falls("inverted", 0.15)],
    controls=[rises("default")],
    columns="paid@0, paid, right@0, right, length@0, length, works",
    panels="reward, right, works",
)

# ---- selection: what the base cannot do ------------------------------------------------------------
# Source: 9.5 RLVR, 1-shot RLVR.

SELECTION = Claim(
    name="selection",
    sentence="RLVR unlocks what is there: a base that has never worked a problem out cannot be helped.",
    doubt="Problems on which luck finds the answer often enough, as that of one digit (tasks/one_digit.py).",
    arms={"guessing": Arm(base="guessing"), "default": DEFAULT},
    claim=[stays("guessing"), has_none("guessing", "works", 0.05, 0.01)],
    controls=[rises("default")],
    columns="right@0, right, greedy@0, greedy, works@start, works",
    panels="right, works, hopeless",
)

# ---- slips: self-correction, and three ways of thinking too long -----------------------------------
# Source: Reward design, length dynamics.
# Each problem comes once, so the accuracy of a step's samples is an accuracy on new problems. Evaluations can be small.

ONCE = {"flags": "--eval-every 60 --eval-problems 20", "every": 3}
OUTCOME = Arm(base="slipping")
KINDS = {"pay waits": "doubting", "pay detours": "excursion", "pay fillers": "padding"}


def noticing(run):
    """Measure the reaction to planted slips, except in the arms that are rewarded for length."""
    return {} if run.arm in KINDS else measures.before_and_after(measures.planted)(run)


def slips_gone(x):
    return 1 - x("outcome", "slips") / x("outcome", "slips@start")


def only_where_paid(arm):
    """Check that the arm's kind of long thinking is more frequent in it than in the two other arms."""
    return [more(arm, other, KINDS[arm], 0.3) for other in KINDS if other != arm]


def longer_than_outcome(arm):
    return longer(arm, "completion_length", ("outcome", "completion_length"), 0.25)


SLIPS = Claim(
    name="slips",
    sentence="A reward for the answer selects noticing one's slips; and thinking gets too long in three distinct ways.",
    doubt="A base whose slips cannot be unlearned, and problems on which a second look or a detour helps.",
    arms={
        "outcome": OUTCOME,
        "random": Arm(COIN.flags, "slipping"),
        **{arm: Arm(f"{START}:{arm.replace(' ', '_')}", "slipping") for arm in KINDS},
    },
    said={
        "a planted slip is noticed more often": [
            rises("outcome", 0.2, "noticed"),
            more("outcome", "random", "noticed", 0.2),
        ],
        "own slips are corrected more often": [grows("outcome", "corrected", 0.2)],
        "and are fewer": [Check("outcome: half of the slips are gone", slips_gone, 0.5, 0.1)],
        "each way of getting too long grows where it is rewarded": [
            *map(grows, KINDS, KINDS.values())
        ],
        "and more there than where another way is rewarded": sum(map(only_where_paid, KINDS), []),
        "length alone does not tell them apart": [*map(longer_than_outcome, KINDS)],
    },
    controls=[
        grows("outcome"),
        stays("random", 0.2, "noticed"),
        reaches("outcome", "noticed@0", 0.3, POINTS),
        *(has_none("outcome", kind, 0.2, POINTS) for kind in KINDS.values()),
    ],
    columns="accuracy@start, accuracy, noticed@0, noticed, saved@0, saved, false alarms, slips@start, slips, "
    "corrected@start, corrected, padding@start, padding, doubting@start, doubting, excursion@start, excursion, "
    "completion_length@start, completion_length, truncated",
    panels="accuracy, padding",
    measure=noticing,
    **ONCE,
)

# ---- prm: a process reward model as the reward -----------------------------------------------------
# Source: Reward design, outcome and process rewards; verifiers, PRM and ORM.

PROCESS = "--method notebooks/rewards/process.py --total"
PRM = Claim(
    name="prm",
    sentence="A process reward model is hacked: its reward rises, and right answers do not follow.",
    doubt="A process model that has seen the policy's own errors, or is trained again on the way.",
    arms={
        "outcome": OUTCOME,
        **{total: Arm(f"{PROCESS} {total}", "slipping") for total in ("mean", "sum")},
    },
    said={
        "rewarded with the mean over steps": [
            rises("mean", 0.2, "score"),
            more("outcome", "mean", "accuracy", 0.2),
        ],
        "rewarded with the sum": [
            rises("sum", 1.0, "sum"),
            more("sum", "outcome", "steps", 1.0),
            more("outcome", "sum", "accuracy", 0.2),
        ],
    },
    controls=[grows("outcome")],
    columns="accuracy@start, accuracy, score@0, score, sum@0, sum, steps@0, steps, slips, doubting, excursion, "
    "completion_length, truncated",
    panels="accuracy, completion_length, slips",
    measure=measures.before_and_after(measures.scores_of),
    **ONCE,
)

# ---- lora: adapters of rank 1 train as well as all weights, at a higher rate -----------------------
# Source: LoRA Without Regret, thinkingmachines.ai/blog/lora (2025; read: summaries only); LoRA, 2106.09685.

LORA = f"{METHOD}/lora.py --rank"
HIGH = (1.2e-3, 4e-3, 1.2e-2)
ADAPTERS = Claim(
    name="lora",
    sentence="In RL adapters of rank 1 learn as well as all weights, if their learning rate is higher.",
    doubt="A task that teaches, rather than selects: one bit a completion fits into any rank. Or wider layers.",
    arms={
        "full": Arm(rates=(4e-4, 1.2e-3, 4e-3)),
        "rank 8": Arm(f"{LORA} 8", rates=HIGH),
        "rank 1": Arm(f"{LORA} 1", rates=HIGH),
        "rank 1, usual rate": Arm(f"{LORA} 1"),
    },
    claim=[
        as_much("full", "rank 1"),
        as_much("full", "rank 1", "right@mean"),
        as_much("full", "rank 8"),
        more("rank 1", "rank 1, usual rate", "right@mean"),
    ],
    controls=[rises("full")],
    columns="right@0, right, right@mean, greedy, length, grad_norm@mean",
    panels="right, entropy",
    steps=50,
)

# ---- ttrl: the majority of the group as the label, if it is right and if it is wrong ---------------
# Source: TTRL, 2504.16084 (read: the abstract and figure 1).
# The usual base guesses in all directions, so its most frequent answer is mostly right. The most frequent answer of the
# hasty base is wrong, although this base is right nearly as often. With labels, the learning rate is the rate chosen
# for `lora`.
# The majority arms only log their --reward, so that accuracy means the same in all arms.

TRUTH = "--reward boxed --num-samples 16"
MAJORITY = f"{METHOD}/ttrl.py {TRUTH}"
BOTH = (4e-4, 1.2e-3)
TTRL = Claim(
    name="ttrl",
    sentence="Reinforcement learning on the majority of one's own answers raises accuracy as labels do.",
    doubt="A base whose most frequent answer is wrong, and that is set right all the same. Or a vote among many more.",
    arms={
        "majority": Arm(MAJORITY, rates=BOTH),
        "truth": Arm(TRUTH, rates=BOTH[1:]),
        "majority, hasty": Arm(MAJORITY, "hasty", BOTH),
        "truth, hasty": Arm(TRUTH, "hasty", BOTH[1:]),
    },
    claim=[rises("majority"), as_much("truth", "majority"), rises("majority, hasty", 0.1)],
    controls=[rises("truth"), rises("truth, hasty")],
    columns="right@0, label, right, solved, mixed",
    panels="right, mixed",
    steps=40,
    measure=measures.label_of,
)

# ---- sharpening: what the base reaches without training --------------------------------------------
# Sources (read: abstract and introduction): Reasoning with Sampling, 2510.14901; Scalable Power Sampling, 2601.21590.
# On the hasty base, the likeliest right completion and the likeliest wrong one are about equally likely; on the rash
# base, the wrong one is more likely.

SHARPENING = Claim(
    name="sharpening",
    sentence="RLVR reaches more than sampling from the sharpened base, which needs no training and no verifier.",
    doubt="A base with more than one mode that is right. Or one whose likeliest completion has to be searched for.",
    arms={"usual": DEFAULT, "hasty": Arm(base="hasty"), "rash": Arm(base="rash")},
    said={
        f"on the {base} base": [rises(base, 0.2, since="best power")]
        for base in ("usual", "hasty", "rash")
    },
    controls=[
        *map(rises, ("usual", "hasty", "rash")),
        rises("usual", 0.3, "p^4", "temperature 1/4"),
    ],
    columns="right@0, p^2, p^4, p^50, best power, temperature 1/4, right, greedy",
    panels="right",
    measure=measures.sharpened,
    every=0,
)

# ---- decay: does accuracy fall when training goes on? ----------------------------------------------
# Source: the logs of reasoning-from-scratch (f79c9cd, ch07/02_logs): four runs with one problem and 8 completions per
# step, at a constant rate. Three of them fall by 13 points or more after step 50. "Fast" is three times our rate: for a
# model of Qwen3-0.6B's size, the logs use 1e-5 and we use 3e-6.


def fades(arm):
    """Check that accuracy ends below its maximum. By chance alone, the maximum of 60 evaluations is about 0.05 above
    their mean."""
    return falls(arm, 0.3, "right", "right@max")


FAST = (1.2e-3,)
CONSTANT = f"{METHOD}/constant.py"
ONE = "--prompts-per-step 1 --num-samples"
DECAY = Claim(
    name="decay",
    sentence="If training goes on, accuracy falls again.",
    doubt="A model of a real size. Or more steps: tenfold, ours may fall, too.",
    arms={
        "ours": DEFAULT,
        "1 x 8, constant": Arm(f"{CONSTANT} {ONE} 8"),
        "fast": Arm(rates=FAST),
        "fast, constant": Arm(CONSTANT, rates=FAST),
        "fast, 1 x 8, constant": Arm(f"{CONSTANT} {ONE} 8", rates=FAST),
        "fast, 1 x 8": Arm(f"{ONE} 8", rates=FAST),
        "fast, 1 x 128": Arm(f"{ONE} 128", rates=FAST),
        "fast, 8 x 2": Arm("--num-samples 2", rates=FAST),
        "fast, 8 x 2, constant": Arm(f"{CONSTANT} --num-samples 2", rates=FAST),
    },
    said={
        "with our settings": [fades("ours")],
        "with those of the logs": [fades("fast, 1 x 8, constant")],
        "with their rate and no schedule": [fades("fast, constant")],
        "with one problem a step and no schedule": [fades("1 x 8, constant")],
        "a schedule prevents it": [more("fast, 1 x 8", "fast, 1 x 8, constant", by=0.3)],
        "so do more completions": [more("fast, 1 x 128", "fast, 1 x 8", by=0.3)],
        "so do more problems": [more("fast, 8 x 2, constant", "fast, 1 x 8, constant", by=0.3)],
    },
    controls=[rises("ours"), rises("fast")],
    columns="right@0, right@50, right@max, right@150, right, greedy, mixed",
    panels="right",
    flags="--eval-every 5 --eval-problems 200",
    steps=300,
    every=10,
)

# ---- fate: does noise slow learning, or turn it? ---------------------------------------------------
# Source: Rate or Fate, 2601.04411 (read: abstract, and a summary of its model).
# J = P(accepted | right) - P(accepted | wrong) = 1 - a - b.


def erring(a, b):
    return Arm(f"{METHOD}/noisy_verifier.py --false-accepts {a} --false-rejects {b}")


FATE = Claim(
    name="fate",
    sentence="Above 0 a verifier's J sets how fast the policy learns; at 0 it learns nothing, below 0 it unlearns.",
    doubt="Errors that depend on what is written, at which a policy can aim.",
    arms={
        "J = 1": erring(0, 0),
        "J = 0.6": erring(0.2, 0.2),
        "J = 0.6, accepts": erring(0.4, 0),
        "J = 0.6, rejects": erring(0, 0.4),
        "J = 0.2": erring(0.4, 0.4),
        "J = 0": erring(0.5, 0.5),
        "J = -0.2": erring(0.6, 0.6),
    },
    said={
        "above 0 it learns": [rises("J = 0.2", 0.2)],
        "the slower, the lower J is": [
            more("J = 1", "J = 0.6", "right@20"),
            more("J = 0.6", "J = 0.2", "right@20"),
        ],
        "but as far": [as_much("J = 1", arm, by=0.2) for arm in ("J = 0.6", "J = 0.2")],
        "J alone counts": [
            as_much("J = 0.6", f"J = 0.6, {kind}", by=0.2) for kind in ("accepts", "rejects")
        ],
        "at 0 nothing is learned": [stays("J = 0")],
        "below 0 it unlearns": [falls("J = -0.2", 0.1)],
    },
    controls=[rises("J = 1")],
    columns="right@0, right@20, right@60, right, greedy",
    panels="right",
    steps=120,
)

# ---- autorule: extracted rules, and whether they prevent a hack ------------------------------------
# Source: AutoRule, sections 5.3 and 5.4, in a simulated world. Nothing is trained for section 5.3.

RULES = Claim(
    name="autorule",
    sentence="AutoRule: extracted rules are the same from run to run, and align with preferences.",
    doubt="A judge whose errors depend on the response and not on the wording of a rule.",
    arms={"rules": Arm(base=TINY, rates=())},
    said={
        "rules of five runs agree": [above("rules", "agreement", 0.9, 0.1)],
        "also for a judge who errs": [above("rules", "agreement, judge errs", 0.9, 0.1)],
        "so do those of fewer pairs": [above("rules", "32 pairs", 0.9, 0.1)],
        "their total scores correlate": [above("rules", "correlation", 0.95, 0.05)],
        "they align better than vague ones and than chance": [
            rises("rules", 0.1, "alignment", other) for other in ("dimensions", "shuffled")
        ],
    },
    panels="agreement, correlation, alignment, dimensions",
    measure=measures.of_rules,
    steps=0,
    every=0,
)

WORLD = "--task notebooks/autorule/autorule_world.py"
HACK = Claim(
    name="autorule_hack",
    sentence="AutoRule: GRPO on a learned reward model is hacked, with extracted rules it is not.",
    doubt="A teacher and a judge that are language models.",
    arms={
        "rules": Arm(f"{WORLD}:rules_{{seed}}", TINY, (1e-3,)),
        "reward model": Arm(f"{WORLD}:reward_model_{{seed}}", TINY, (1e-3,)),
        "no rule on the result": Arm(f"{WORLD}:no_rule_on_the_result_{{seed}}", TINY, (1e-3,)),
        "true answer": Arm("--reward boxed", TINY, (1e-3,)),
    },
    said={
        "the reward model alone is hacked": [
            rises("reward model", 0.2, "right@best", "right@start"),
            falls("reward model", 0.3, "right", "right@best"),
            rises("reward model", 0.3, "r_model", "r_model@best"),
        ],
        "with the rules it is not": [keeps("rules"), more("rules", "reward model", by=0.3)],
    },
    controls=[keeps("true answer"), falls("no rule on the result", 0.2, "right", "right@best")],
    columns="right@start, right@best, right",
    panels="accuracy, r_model, completion_length",
    measure=measures.at_best,
    flags="--num-samples 8 --method notebooks/methods/kl.py --kl-coef 0.001 --eval-every 1000 --eval-problems 50",
    steps=80,
    every=2,
)

CLAIMS = {claim.name: claim for claim in [*globals().values()] if isinstance(claim, Claim)}

if __name__ == "__main__":
    run_command(lambda: main(CLAIMS.values()))
