"""search.py - an environment: a search engine that the policy asks (Search-R1, arXiv 2503.09516).

    python -m notebooks.models.make_tiny --task search --out runs/searching
    python train.py --model runs/searching --task notebooks/environments/search.py:search --steps 60 \
        --lr 1e-3

The policy writes <search>..</search>, and reads the best pages in <information>..</information>, which are in no loss
(the paper's retrieved token masking). The reward is the paper's: the right answer alone; `with_form` adds a term for
the form. No training problem says what is held out, so that it can only be looked up; `nothing` is the control.
Missing: the paper's Wikipedia, dense retriever and prompt (a --prompt), and its thinking.
"""

import math
import random
import re
from collections import Counter

from verifiers import Task, held_out

# Who was born where was drawn: no other page, and no reasoning, says it.
FIRST = "Ada Ben Cleo Dan Eve Finn Gus Hal Ida Jon Kim Leo Mia Ned Ola Pia".split()
LAST = "Abel Berg Cole Dahl Egan Frey Gold Hunt Ives Kerr Lund Moor Nash Otto Pohl Reed".split()
TOWNS = "Athens Berlin Cairo Dakar Essen Graz Hanoi Izmir Jena Kyiv Lima Milan Nice Oslo".split()
KINDS = {  # how it is asked, and what the page says
    "born": ("Where was {} born?", "{} was born in {}."),
    "works": ("Where does {} work?", "{} works in {}."),
}


def people():
    """-> problems to train on, those held out, and the pages. Each problem has the query that finds its page."""
    rng = random.Random(0)
    train = []
    test = []
    pages = []
    for person in [f"{first} {last}" for first in FIRST for last in LAST]:
        for verb, (question, page) in KINDS.items():
            town = rng.choice(TOWNS)
            query = f"{person} {verb}"
            problem = {"problem": question.format(person), "answer": town, "query": query}
            (test if held_out(problem) else train).append(problem)
            pages.append(page.format(person, town))
    return train, test, pages


def words(text):
    return Counter(re.findall(r"\w+", text.lower()))


TRAIN, TEST, PAGES = people()
COUNTS = [words(page) for page in PAGES]


def bm25(query, counts, k=1.2, b=0.75):
    """The score of each page, of which the words are counted: the sum over the words w of the query of
    idf(w) n (k + 1) / (n + k (1 - b + b length / mean length)), n how often w is in it (Robertson and
    Zaragoza 2009)."""
    mean = sum(count.total() for count in counts) / len(counts)
    scores = [0.0] * len(counts)
    for word in words(query):
        having = [page for page, count in enumerate(counts) if word in count]
        idf = math.log(1 + (len(counts) - len(having) + 0.5) / (len(having) + 0.5))
        for page in having:
            n = counts[page][word]
            room = k * (1 - b + b * counts[page].total() / mean)
            scores[page] += idf * n * (k + 1) / (n + room)
    return scores


class Search:
    """The best two pages for each query, for so many queries; a turn without one is the last."""

    queries = 3
    pages = 2

    def __init__(self, problem):
        self.left = self.queries

    def reply(self, text):
        query, end, _ = text.rpartition("<search>")[2].partition("</search>")
        if not end or self.left == 0:
            return None
        self.left -= 1
        scores = bm25(query, COUNTS)
        best = sorted(range(len(PAGES)), key=lambda page: -scores[page])[: self.pages]
        found = " ".join(PAGES[page] for page in best if scores[page] > 0)
        return f"<information>{found}</information>"


class Nothing(Search):
    pages = 0


def answer_reward(completion, problem):
    """A completion is the policy's own words: what a page says can be no answer."""
    answers = re.findall("<answer>([^<]*)</answer>", completion)
    right = float(bool(answers) and words(answers[-1]) == words(problem["answer"]))
    searches = sum(reply is not None for _, reply in problem["turns"])
    return right, {"accuracy": right, "answered": float(bool(answers)), "searches": searches}


def with_form(completion, problem):
    """0.1 more for queries and an answer, and nothing beside them."""
    right, parts = answer_reward(completion, problem)
    form = "(<search>[^<]*</search>)+<answer>[^<]*</answer>"
    parts["format"] = float(bool(re.fullmatch(form, completion.strip())))
    return right + 0.1 * parts["format"], parts


def search(turns=Search):
    note = f"{len(PAGES)} pages; one question in ten is held out by a hash"
    stops = ("</search>", "</answer>")
    return Task("search", TRAIN, TEST, "{problem}", answer_reward, note, stops, turns)


def nothing():
    return search(Nothing)
