"""claims.py - what the chapters and papers claim, tried on tiny models, each with controls. The command: see claim.py.

AutoRule's are tried in the simulated worlds of the seeds; notebook 7 shows what came out, of the others notebook 6 does.
Three settings were chosen on seed 0, after weaker ones had shown no effect: the bilingual base, the learning rate of the
guessing arms of `boxes`, and the steps and payments of `slips`.
"""

import numpy as np

from notebooks.autorule.autorule_world import TINY
from notebooks.claims import measures
from notebooks.claims.claim import (
    POINTS,
    SHARE,
    Arm,
    Check,
    Claim,
    as_much,
    falls,
    grows,
    has_none,
    longer,
    main,
    more,
    reaches,
    rises,
    stays,
)

METHOD = "--method notebooks/methods"
CONTROL = "--reward notebooks/rewards/controls.py"
START = "--reward notebooks/claims/start.py"
DEFAULT = Arm()
COIN = Arm(f"{CONTROL}:coin")
CURVES = {"flags": "--eval-every 5 --eval-problems 200", "steps": 60, "every": 5}

# ---- growth: does thinking grow? -------------------------------------------------------------------


def lengthens(arm, column, since, by):
    sentence = f"{arm}: {column} is {by:.0%} more than {arm} {since}"
    return longer(sentence, (arm, column), (arm, since), by)


GROWTH = Claim(
    name="growth",
    sentence="Under a reward for accuracy alone thinking grows by itself.",
    source="reward design, length dynamics",
    doubt="A base that can correct itself, so that a longer thought of the same kind is more often right.",
    arms={"default": DEFAULT, "random": COIN},
    checks={
        "claim": [
            lengthens("default", "length", "length@0", 0.5),
            lengthens("default", "length", "length@30", 0.2),
            lengthens("default", "plain length", "plain length@start", 0.2),
        ],
        "controls": [
            longer(
                "random: length is no more than random length@0 (20% would refute it)",
                *(("random", "length"), ("random", "length@0"), 0.2, True),
            ),
            rises("default"),
        ],
    },
    columns=(
        *("right@0", "right", "length@0", "length@30", "length", "works@start", "works"),
        *("plain length@start", "plain length"),
    ),
    panels=("right", "completion_length", "works"),
    **CURVES,
)

# ---- design: two rewards ---------------------------------------------------------------------------

DESIGN_A = "--reward r1-zero"
DESIGN_B = f"{START}:r1_short"
BILINGUAL_A = "A, bilingual base"
BILINGUAL_B = "B, bilingual base"
DESIGN = Claim(
    name="design",
    sentence="Design A (accuracy and form) leaves bilingual and rambling thinking; design B (penalties too) removes "
    "both at equal accuracy.",
    source="reward design, language consistency",
    doubt="A base whose rambling is as often right as its plain work.",
    arms={
        "design A": Arm(DESIGN_A),
        "design B": Arm(DESIGN_B),
        BILINGUAL_A: Arm(DESIGN_A, "bilingual"),
        BILINGUAL_B: Arm(DESIGN_B, "bilingual"),
    },
    checks={
        "claim": [
            more(BILINGUAL_A, BILINGUAL_B, "bilingual"),
            more("design A", "design B", "rambling"),
            as_much("design A", "design B"),
            as_much(BILINGUAL_A, BILINGUAL_B),
        ],
        "controls": [
            reaches(BILINGUAL_A, "bilingual@start", 0.1, SHARE),
            rises("design A", 0.1),
            rises("design B", 0.1),
        ],
    },
    columns=("right@0", "right", "bilingual@start", "bilingual", "rambling@start", "rambling"),
    panels=("right", "bilingual", "rambling"),
    **CURVES,
)

# ---- format: paid for the form only ----------------------------------------------------------------

FORM = Claim(
    name="format",
    sentence="Paid only for the form, the reward saturates and accuracy collapses.",
    source="reward design, reward components",
    doubt="Hundreds of steps, in which the habit of working problems out has time to fade.",
    arms={"format only": Arm(f"{CONTROL}:format_only"), "default": DEFAULT},
    checks={
        "claim": [
            Check(
                "format only: less than 5 % of the reward is missing in the end",
                lambda x: 0.1 - (1 - x("format only", "paid")),
                *(0.1, 0.02),
            ),
            falls("format only", 0.15),
        ],
        "controls": [rises("default")],
    },
    columns=("paid@0", "paid", "right@0", "right", "length@0", "length"),
    panels=("reward", "right", "completion_length"),
    **CURVES,
)

# ---- boxes: which one counts? ----------------------------------------------------------------------
# Where little is right, few completions earn anything: the guessing arms get a higher learning rate and a larger
# evaluation.


def guessing(reward):
    return Arm(f"{reward} --eval-problems 500", "guessing", (1e-3,))


def more_boxes(arm, same=False):
    sentence = f"{arm}: {'no' if same else 'one'} more box in a completion"
    return Check(sentence, lambda x: x(arm, "boxes") - x(arm, "boxes@start"), 1.0, 0.1, same)


def parts_company(arm):
    return Check(
        f"{arm}: what is paid grows by 0.1 more than what is right",
        lambda x: x(arm, "paid") - x(arm, "paid@0") - x(arm, "right") + x(arm, "right@0"),
        *(0.1, POINTS),
    )


HOLES = ("any box, guessing", "first box, guessing")
BOXES = Claim(
    name="boxes",
    sentence="A verifier that takes the first box or any box is hacked by spamming guesses; one that takes the last box "
    "is not.",
    source="reward design, reasoning-specific hacks",
    doubt="Problems so hard that the base which can work seldom succeeds: there it may be tempted.",
    arms={
        "any box, guessing": guessing(f"{CONTROL}:any_box"),
        "first box, guessing": guessing(f"{CONTROL}:first_box"),
        "last box, guessing": guessing("--reward boxed"),
        "any box": Arm(f"{CONTROL}:any_box"),
        "last box": Arm("--reward boxed"),
    },
    checks={
        "claim": [*map(parts_company, HOLES), *map(more_boxes, HOLES)],
        "controls": [more_boxes("last box, guessing", same=True), as_much("last box", "any box")],
    },
    columns=("paid@0", "paid", "right@0", "right", "boxes@start", "boxes@max", "boxes"),
    panels=("reward", "right", "boxes"),
    **CURVES,
)

# ---- problems: one to train on ---------------------------------------------------------------------

PROBLEMS = Claim(
    name="problems",
    sentence="One problem suffices to start the training; to finish takes more.",
    source="9.5 RLVR, 1-shot RLVR",
    doubt="A base that has to learn more than a habit: here any problem teaches to work problems out.",
    arms={
        "1 problem": Arm("--train-problems 1"),
        "64 problems": Arm("--train-problems 64"),
        "default": DEFAULT,
    },
    checks={
        "claim": [rises("1 problem", 0.2), more("default", "1 problem", by=0.2)],
        "controls": [rises("default"), as_much("default", "64 problems")],
    },
    columns=("right@0", "right", "greedy@0", "greedy", "accuracy", "mixed"),
    panels=("right", "accuracy", "mixed"),
    **CURVES,
)

# ---- updates: several of a batch -------------------------------------------------------------------

OFTEN = {
    "ppo x 4": "--updates-per-batch 4",
    "gspo x 4": f"{METHOD}/gspo.py --updates-per-batch 4",
    "cispo x 4": f"{METHOD}/cispo.py --updates-per-batch 4",
    "reinforce x 4": f"{METHOD}/reinforce.py --kl-coef 0 --updates-per-batch 4",
}
UPDATES = Claim(
    name="updates",
    sentence="Several updates on the same completions learn faster, and break sooner. x 4: four updates a batch; fast: "
    "five times the default learning rate.",
    source="9.5 RLVR",
    doubt="Ten seeds at the fast rate, where the three of ppo end far apart.",
    arms={
        "default": DEFAULT,
        **{name: Arm(flags) for name, flags in OFTEN.items()},
        "ppo x 4, fast": Arm(OFTEN["ppo x 4"], rates=(2e-3,)),
        "cispo x 4, fast": Arm(OFTEN["cispo x 4"], rates=(2e-3,)),
    },
    checks={
        "claim": [
            more("ppo x 4", "default", "right@20"),
            more("ppo x 4", "ppo x 4, fast", by=0.3),
            more("cispo x 4", "cispo x 4, fast", by=0.3),
        ],
        "controls": [*map(rises, OFTEN)],
    },
    columns=("right@0", "right@20", "right", "greedy", "clipped@mean"),
    panels=("right", "clipped"),
    **CURVES,
)

# ---- controls: rewards that know nothing -----------------------------------------------------------

CONTROLS = Claim(
    name="controls",
    sentence="A reward that knows nothing of the answer teaches nothing, an inverted one harms.",
    source="the control for all others; gains under random rewards: Shao et al. 2025, 2506.10947",
    doubt="A base whose dormant habits are right: there such a drift would look like learning.",
    arms={"random": COIN, "inverted": Arm(f"{CONTROL}:inverted"), "default": DEFAULT},
    checks={
        "claim": [stays("random"), falls("inverted", 0.15)],
        "controls": [rises("default")],
    },
    columns=("paid@0", "paid", "right@0", "right", "length@0", "length", "works"),
    panels=("reward", "right", "works"),
    **CURVES,
)

# ---- selection: what the base cannot do ------------------------------------------------------------

SELECTION = Claim(
    name="selection",
    sentence="RLVR unlocks what is there: a base that has never worked a problem out cannot be helped.",
    source="9.5 RLVR, 1-shot RLVR",
    doubt="Problems on which luck finds the answer often enough: from random weights one digit is learned "
    "(tasks/one_digit.py).",
    arms={"guessing": Arm(base="guessing"), "default": DEFAULT},
    checks={
        "claim": [stays("guessing"), has_none("guessing", "works", 0.05, 0.01)],
        "controls": [rises("default")],
    },
    columns=("right@0", "right", "greedy@0", "greedy", "works@start", "works"),
    panels=("right", "works", "hopeless"),
    **CURVES,
)

# ---- slips: self-correction, and three ways of thinking too long -----------------------------------
# Each problem comes once, so that the accuracy of a step's samples is that on new problems, and next to none are held out.

ONCE = {"flags": "--eval-every 60 --eval-problems 20", "steps": 60, "every": 3}
OUTCOME = Arm(base="slipping")
KINDS = {"pay waits": "doubting", "pay detours": "excursion", "pay fillers": "padding"}


def noticing(run):
    """Of the arms that are not paid for length."""
    return {} if run.arm in KINDS else measures.before_and_after(measures.planted)(run)


def longer_than_outcome(arm):
    column = "completion_length"
    return longer(f"{arm}: 25% longer than outcome", (arm, column), ("outcome", column), 0.25)


SLIPS = Claim(
    name="slips",
    sentence="A reward for the answer selects noticing one's slips; and thinking gets too long in three ways that can be "
    "told apart: padding, repeated self-correction (doubting), excursion.",
    source="reward design, length dynamics",
    doubt="A base whose slips cannot be unlearned, and problems on which a second look or a detour pays.",
    arms={
        "outcome": OUTCOME,
        "random": Arm(COIN.flags, "slipping"),
        **{arm: Arm(f"{START}:{arm.replace(' ', '_')}", "slipping") for arm in KINDS},
    },
    checks={
        "a planted slip is noticed more often": [
            rises("outcome", 0.2, "noticed"),
            more("outcome", "random", "noticed", 0.2),
        ],
        "own slips are corrected more often": [grows("outcome", "corrected", 0.2)],
        "and are fewer": [
            Check(
                "outcome: half of the slips are gone",
                lambda x: 1 - x("outcome", "slips") / x("outcome", "slips@start"),
                *(0.5, 0.1),
            )
        ],
        "each way of too long grows where it is paid": [
            grows(arm, kind) for arm, kind in KINDS.items()
        ],
        "and there more than where another is": [
            more(arm, other, kind, 0.3)
            for arm, kind in KINDS.items()
            for other in KINDS
            if other != arm
        ],
        "length alone does not tell them apart": [*map(longer_than_outcome, KINDS)],
        "controls": [
            grows("outcome"),
            stays("random", 0.2, "noticed"),
            reaches("outcome", "noticed@0", 0.3, POINTS),
            *(has_none("outcome", kind, 0.2, POINTS) for kind in KINDS.values()),
        ],
    },
    columns=(
        *("accuracy@start", "accuracy", "noticed@0", "noticed", "saved@0", "saved"),
        *("false alarms", "slips@start", "slips", "corrected@start", "corrected"),
        *("padding@start", "padding", "doubting@start", "doubting", "excursion@start", "excursion"),
        *("completion_length@start", "completion_length", "truncated"),
    ),
    panels=("accuracy", "padding"),
    measure=noticing,
    **ONCE,
)

# ---- prm: a process reward model as the reward -----------------------------------------------------

PROCESS = "--method notebooks/rewards/process.py --total"
PRM = Claim(
    name="prm",
    sentence="A process reward model is hacked: what it pays rises, and right answers do not follow.",
    source="reward design, outcome and process rewards; verifiers, PRM and ORM",
    doubt="A process model that has seen the policy's own errors, or is trained again on the way.",
    arms={
        "outcome": OUTCOME,
        "mean": Arm(f"{PROCESS} mean", "slipping"),
        "sum": Arm(f"{PROCESS} sum", "slipping"),
    },
    checks={
        "paid the mean of the steps": [
            rises("mean", 0.2, "score"),
            more("outcome", "mean", "accuracy", 0.2),
        ],
        "paid their sum": [
            rises("sum", 1.0, "sum"),
            more("sum", "outcome", "steps", 1.0),
            more("outcome", "sum", "accuracy", 0.2),
        ],
        "controls": [grows("outcome")],
    },
    columns=(
        *("accuracy@start", "accuracy", "score@0", "score", "sum@0", "sum", "steps@0", "steps"),
        *("slips", "doubting", "excursion", "completion_length", "truncated"),
    ),
    panels=("accuracy", "completion_length", "slips"),
    measure=measures.before_and_after(measures.scores_of),
    **ONCE,
)

# ---- lora: adapters of rank 1 train as well as all weights, at a higher rate -----------------------

TUNED = {"flags": "--eval-every 5 --eval-problems 200 --micro-batch-tokens 4096", "every": 5}
LORA = f"{METHOD}/lora.py --rank"
HIGH = (1.2e-3, 4e-3, 1.2e-2)
ADAPTERS = Claim(
    name="lora",
    sentence="In RL adapters of rank 1 learn as well as all weights, if their learning rate is higher.",
    source="LoRA Without Regret, thinkingmachines.ai/blog/lora (2025), read in summaries: its factor of ten is not "
    "judged, for rates are chosen on one seed; LoRA, 2106.09685",
    doubt="A task that has to teach the model something, rather than to select what it can: one bit a completion fits "
    "into any rank. Or layers of width 1,024 instead of 64, where a rank of 1 is a smaller share.",
    arms={
        "full": Arm(rates=(4e-4, 1.2e-3, 4e-3)),
        "rank 8": Arm(f"{LORA} 8", rates=HIGH),
        "rank 1": Arm(f"{LORA} 1", rates=HIGH),
        "rank 1, usual rate": Arm(f"{LORA} 1"),
    },
    checks={
        "claim": [
            as_much("full", "rank 1"),
            as_much("full", "rank 1", "right@mean"),
            as_much("full", "rank 8"),
            more("rank 1", "rank 1, usual rate", "right@mean"),
        ],
        "controls": [rises("full")],
    },
    columns=("right@0", "right", "right@mean", "greedy", "length", "grad_norm@mean", "spent"),
    panels=("right", "entropy"),
    steps=50,
    **TUNED,
)

# ---- ttrl: the majority of the group as the label, where it is right and where it is not -----------
# The usual base guesses in all directions, so that of its answers the right one is mostly the most frequent; the
# hasty one's is wrong, and its right answers are as many. With labels the rate is the one that lora chose. The reward of
# the majority arms is logged alone: accuracy means the same in all arms.

TRUTH = "--reward boxed --num-samples 16"
MAJORITY = f"{METHOD}/ttrl.py {TRUTH}"
EITHER = (4e-4, 1.2e-3)
TTRL = Claim(
    name="ttrl",
    sentence="Reinforcement learning on the majority of one's own answers raises accuracy as labels do.",
    source="TTRL, 2504.16084 (read: the abstract and figure 1)",
    doubt="A base whose most frequent answer is wrong, and that TTRL sets right all the same. Or a vote among many more "
    "samples than are trained on, as the paper has it.",
    arms={
        "majority": Arm(MAJORITY, rates=EITHER),
        "truth": Arm(TRUTH, rates=EITHER[1:]),
        "majority, hasty": Arm(MAJORITY, "hasty", EITHER),
        "truth, hasty": Arm(TRUTH, "hasty", EITHER[1:]),
    },
    checks={
        "claim": [rises("majority"), as_much("truth", "majority"), rises("majority, hasty", 0.1)],
        "controls": [rises("truth"), rises("truth, hasty")],
    },
    columns=("right@0", "label", "right", "solved", "mixed"),
    panels=("right", "mixed"),
    steps=40,
    measure=measures.label_of,
    **TUNED,
)

# ---- autorule: extracted rules, and whether they prevent a hack ------------------------------------


def above(column, level, by=0.1):
    """The line is at the level."""
    sentence = f"rules: {column} is above {level:g} (less {level - by:g})"
    return Check(sentence, lambda x: x("rules", column) - level + by, 2 * by, 0.02)


def aligned_above(other, by=0.1):
    sentence = f"rules: alignment is {by:g} above {other}"
    return Check(sentence, lambda x: x("rules", "alignment") - x("rules", other), by, 0.02)


RULES = Claim(
    name="autorule",
    sentence="AutoRule: extracted rules are the same from run to run, and align with preferences.",
    source="AutoRule, 5.3; in a simulated world, where nothing is trained for it",
    doubt="A judge whose errors depend on the response and not on the wording of a rule.",
    arms={"rules": Arm(base=TINY, rates=())},
    checks={
        "rules of five runs agree": [above("agreement", 0.9)],
        "also for a judge who errs": [above("agreement, judge errs", 0.9)],
        "so do those of fewer pairs": [above("32 pairs", 0.9)],
        "their total scores correlate": [above("correlation", 0.95, 0.05)],
        "they align better than vague ones and than chance": [
            aligned_above("dimensions"),
            aligned_above("shuffled"),
        ],
    },
    panels=("agreement", "correlation", "alignment", "dimensions"),
    measure=measures.of_rules,
)


def moves(arm, since, column, by, noise=POINTS):
    """From one column of an arm to another."""
    sentence = f"{arm}: {column} is {by:+g} from {since}"
    sign = np.sign(by)
    return Check(sentence, lambda x: sign * (x(arm, column) - x(arm, since)), abs(by), noise)


def keeps(arm, by=0.2):
    sentence = f"{arm}: right is no {by:g} below right@best ({by:+g} is no loss)"
    return Check(sentence, lambda x: x(arm, "right") - x(arm, "right@best") + by, by, POINTS)


WORLD = "--task notebooks/autorule/autorule_world.py"
HACK = Claim(
    name="autorule_hack",
    sentence="AutoRule: GRPO on a learned reward model is hacked, with extracted rules it is not.",
    source="AutoRule, 5.4; in a simulated world",
    doubt="A teacher and a judge that are language models.",
    arms={
        "rules": Arm(f"{WORLD}:rules_{{seed}}", TINY, (1e-3,)),
        "reward model": Arm(f"{WORLD}:reward_model_{{seed}}", TINY, (1e-3,)),
        "no rule on the result": Arm(f"{WORLD}:no_rule_on_the_result_{{seed}}", TINY, (1e-3,)),
        "true answer": Arm("--reward boxed", TINY, (1e-3,)),
    },
    checks={
        "the reward model alone is hacked": [
            moves("reward model", "right@start", "right@best", 0.2),
            moves("reward model", "right@best", "right", -0.3),
            moves("reward model", "r_model@best", "r_model", 0.3, 0.1),
        ],
        "with the rules it is not": [keeps("rules"), more("rules", "reward model", by=0.3)],
        "controls": [
            keeps("true answer"),
            moves("no rule on the result", "right@best", "right", -0.2),
        ],
    },
    columns=("right@start", "right@best", "right"),
    panels=("right@best", "right"),
    measure=measures.at_best,
    flags="--num-samples 8 --kl-coef 0.001 --eval-every 1000 --eval-problems 50",
    steps=80,
)

CHAPTERS = [GROWTH, DESIGN, FORM, BOXES, PROBLEMS, UPDATES, CONTROLS, SELECTION, SLIPS, PRM]
ALL = [*CHAPTERS, ADAPTERS, TTRL, RULES, HACK]
CLAIMS = {claim.name: claim for claim in ALL}

if __name__ == "__main__":
    main(ALL)
