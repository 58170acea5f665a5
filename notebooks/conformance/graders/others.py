"""others.py - graders of other projects, each called as its project calls it. run.py runs these functions, in an
environment that has their packages.

    KIT_SRC=.. python -m notebooks.conformance.graders.run notebooks/conformance/graders/others.py:trl --python ..

Packages: math-verify 0.9.0, trl 1.16.0, verl 0.9.1, openrlhf 0.11.2 and lighteval 0.13.0. verifiers 0.4.0, with which
prime-rl trains, needs its own environment, because lighteval pins another version of latex2sympy2_extended. Checkouts
(KIT_SRC, see board.py): reasoning-from-scratch f79c9cd, open-instruct e6c3044, slime 624b824 and understand-r1-zero
dfca49d. They need sympy, pylatexenc, math-verify and antlr4-python3-runtime 4.11.
"""

import importlib
import logging
import os
import sys
from functools import cache

logging.disable(logging.CRITICAL)


def boxed(answer):
    return f"so \\boxed{{{answer}}}"


@cache
def module(name, folder=None):
    """Import a module of a package, or of a folder in KIT_SRC."""
    if folder:
        sys.path.insert(0, os.path.join(os.environ["KIT_SRC"], folder))
    return importlib.import_module(name)


def this_project(problem, answer, truth):
    """Return the accuracy that boxed_reward gives an answer."""
    return completion(problem, boxed(answer), truth)


def completion(problem, text, truth):
    """Return the accuracy that boxed_reward gives a whole text, for rows that have one."""
    from verifiers import boxed_reward

    return boxed_reward(text, {"problem": problem, "answer": truth})[1]["accuracy"]


def math_verify(answer, truth):
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return verify(parse(boxed(truth), configs), parse(boxed(answer), configs))


def trl(answer, truth):
    return module("trl.rewards").accuracy_reward([[{"content": boxed(answer)}]], [boxed(truth)])[0]


def verl_math(answer, truth):
    return module("verl.utils.reward_score.math_reward").compute_score(boxed(answer), truth)


def verl_dapo(answer, truth):
    """Use the form that DAPO's prompt asks for. A box would be compared letter by letter."""
    math_dapo = module("verl.utils.reward_score.math_dapo")
    return math_dapo.compute_score(f"Answer: {answer}", truth)["acc"]


def verl_prime(answer, truth):
    return module("verl.utils.reward_score.prime_math").compute_score(boxed(answer), truth)[0]


def verifiers(answer, truth):
    return module("verifiers.v1.utils.score").verify_boxed_math_answer(boxed(answer), truth)


def lighteval(answer, truth):
    from lighteval.metrics.metrics import Metrics
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc

    metric = Metrics.g_pass_at_k_latex.value.sample_level_fn
    doc = Doc(query="", choices=[boxed(truth)], gold_index=0)
    return metric.compute_score(doc, ModelResponse(text=[boxed(answer)]))


def openrlhf(answer, truth):
    return module("openrlhf.utils.math_utils").grade_answer(answer, truth)


def reasoning_from_scratch(answer, truth):
    ch03 = module("reasoning_from_scratch.ch03", "reasoning-from-scratch")
    return ch03.grade_answer(answer, truth)


def open_instruct(answer, truth):
    """Compare as MathVerifier compares each candidate that it finds in a text."""
    math_utils = module("open_instruct.math_utils", "open-instruct")
    return math_utils.is_equiv(answer, truth) or math_utils.hendrycks_is_equiv(answer, truth)


def slime(answer, truth):
    math_utils = module("math_utils", "slime/slime/rollout/rm_hub")
    return math_utils.grade_answer_verl(boxed(answer), truth)


def understand_r1_zero(answer, truth):
    math_grader = module("math_grader", "understand-r1-zero/understand_r1_zero")
    return math_grader.boxed_reward_fn(boxed(answer), truth)[1]
