"""search.py - an environment: a search engine that the policy asks (Search-R1, arXiv 2503.09516).

    python -m notebooks.models.make_tiny --task search --out runs/searching
    python train.py --model runs/searching --task notebooks/environments/search.py:search --steps 60 \
        --lr 1e-3

The policy writes <search>..</search>, and reads the best pages in <information>..</information>, which are in no loss
(the paper's retrieved token masking). The reward is the paper's: the right answer alone; `with_form` adds a term for
the form. No training problem says what is held out, so that it can only be looked up; `nothing` is the control.
Missing: the paper's Wikipedia, dense retriever and prompt (a --prompt), and its thinking.
"""

import heapq
import math
import random
import re

from verifiers import Task, held_out

# Who was born where was drawn: no other page, and no reasoning, says it.
FIRST = "Ada Ben Cleo Dan Eve Finn Gus Hal Ida Jon Kim Leo Mia Ned Ola Pia".split()
LAST = "Abel Berg Cole Dahl Egan Frey Gold Hunt Ives Kerr Lund Moor Nash Otto Pohl Reed".split()
TOWNS = "Athens Berlin Cairo Dakar Essen Graz Hanoi Izmir Jena Kyiv Lima Milan Nice Oslo".split()


def people():
    """Questions, their answers, the queries that find a page, and the pages."""
    rng = random.Random(0)
    for first in FIRST:
        for last in LAST:
            who = f"{first} {last}"
            town = rng.choice(TOWNS)
            yield f"Where was {who} born?", town, f"{who} born", f"{who} was born in {town}."
            town = rng.choice(TOWNS)
            yield f"Where does {who} work?", town, f"{who} works", f"{who} works in {town}."


def words(text):
    return re.findall(r"\w+", text.lower())


PROBLEMS = [dict(zip(("problem", "answer", "query"), each)) for each in people()]
PAGES = {page: words(page) for *_, page in people()}
MEAN = 5.5  # words of a page: half of them have 5, half 6


def bm25(query):
    """{page: score}, the sum over the words of the query that are in the page of idf / (1.3 + 0.9 length / mean length):
    Robertson and Zaragoza 2009 with k 1.2 and b 0.75, where no page has a word twice."""
    scores = dict.fromkeys(PAGES, 0.0)
    for word in dict.fromkeys(words(query)):
        having = [page for page in PAGES if word in PAGES[page]]
        for page in having:
            idf = math.log((len(PAGES) + 1) / (len(having) + 0.5))
            scores[page] += idf / (1.3 + 0.9 * len(PAGES[page]) / MEAN)
    return scores


class Search:
    """The best two pages for each of three queries; a turn without one is the last."""

    pages = 2

    def __init__(self, problem):
        self.left = 3

    def reply(self, text):
        query = text.rpartition("<search>")[2]  # subtle: its end is a word that no page has
        if "</search>" not in query or not self.left:
            return None
        self.left -= 1
        scores = bm25(query)
        best = heapq.nlargest(self.pages, scores, scores.get)
        found = " ".join(page for page in best if scores[page])
        return f"<information>{found}</information>"


class Nothing(Search):
    pages = 0


def answer_reward(completion, problem):
    """A completion is the policy's own words: what a page says can be no answer."""
    answers = re.findall("<answer>([^<]*)</answer>", completion)
    right = float(bool(answers) and words(answers[-1]) == words(problem["answer"]))
    return right, {"accuracy": right, "answered": float(bool(answers))}


def with_form(completion, problem):
    """0.1 more for queries and an answer, and nothing beside them."""
    right, parts = answer_reward(completion, problem)
    form = re.fullmatch("(<search>[^<]*</search>)+<answer>[^<]*</answer>", completion.strip())
    return right + 0.1 * bool(form), parts | {"format": float(bool(form))}


def search(turns=Search):
    train = [problem for problem in PROBLEMS if not held_out(problem)]
    test = [*filter(held_out, PROBLEMS)]
    stops = ("</search>", "</answer>")
    return Task("search", train, test, "{problem}", answer_reward, stops, turns)


def nothing():
    return search(Nothing)
