"""translation.py - BLEU of a translation, as a reward (chapter 9.5)."""

import functools
import math
import operator
import re
from collections import Counter


def verify_translation(candidate: str, references) -> dict:
    """bleu: BLEU-4 of one sentence, BP (p_1 p_2 p_3 p_4)^(1/4) (Papineni et al. 2002), and its factors.

    p_n: the share of the n-grams that a reference has too, each counted at most as often as in the
    reference that has it most. For n > 1 one is added above and below (Lin and Och 2004), or most single
    sentences would get 0. BP = min(1, exp(1 - r/c)), for c words against a reference of r, the closest in
    length. Example (Papineni): seven times "the" against "the cat is on the mat" has p_1 = 2/7.
    """
    references = [references] if isinstance(references, str) else references
    words, *golds = (_BLEU_WORD.findall(text.lower()) for text in (candidate, *references))
    precisions = []
    for n in range(1, 5):
        said = ngrams(words, n)
        smooth = float(n > 1)
        # The larger count.
        allowed = functools.reduce(operator.or_, (ngrams(gold, n) for gold in golds))
        precisions.append(((said & allowed).total() + smooth) / max(1.0, said.total() + smooth))
    closest = min(map(len, golds), key=lambda length: (abs(length - len(words)), length))
    brevity = min(1.0, math.exp(1 - closest / max(1, len(words))))
    return {
        "bleu": brevity * math.prod(precisions) ** 0.25,
        "precisions": precisions,
        "brevity": brevity,
    }


# A Chinese character is a word.
_BLEU_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+|[^\w\s]")


def ngrams(words, n):
    return Counter(zip(*(words[i:] for i in range(n))))


def bleu_reward(completion, problem):
    """BLEU of what stands behind the thinking against problem["answer"]."""
    bleu = verify_translation(completion.rpartition("</think>")[2], problem["answer"])["bleu"]
    return bleu, {"accuracy": bleu, "answered": float(completion.strip() != "")}
