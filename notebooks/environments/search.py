"""search.py - an environment: a search engine for the policy (Search-R1, arXiv 2503.09516).

    python -m notebooks.models.make_tiny --task search --out runs/searching
    python train.py --model runs/searching --task notebooks/environments/search.py:search --steps 60 \
        --lr 1e-3

The policy writes <search>..</search> and reads the best pages in <information>..</information>, which are never
trained on (the paper's retrieved token masking). As in the paper, only a right answer is rewarded; `with_form` adds a
term for the form. No training problem reveals a held-out fact, so the policy must look it up. The control, `nothing`,
finds no pages.
Missing: the paper's Wikipedia, dense retriever and prompt (a --prompt), and its thinking.
"""

import heapq
import math
import random
import re

from verifiers import Task, held_out

# Each person's towns are drawn at random: no other page reveals them, and no reasoning can.
FIRST = "Ada Ben Cleo Dan Eve Finn Gus Hal Ida Jon Kim Leo Mia Ned Ola Pia".split()
LAST = "Abel Berg Cole Dahl Egan Frey Gold Hunt Ives Kerr Lund Moor Nash Otto Pohl Reed".split()
TOWNS = "Athens Berlin Cairo Dakar Essen Graz Hanoi Izmir Jena Kyiv Lima Milan Nice Oslo".split()


def people():
    """Yield each question, its answer, the query that finds its page, and the page."""
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
MEAN = 5.5  # mean number of words on a page: half have 5, half 6


def bm25(query):
    """Return {page: score}. The score is the sum of idf / (1.3 + 0.9 length / mean length) over the query's words
    that are on the page: BM25 (Robertson and Zaragoza 2009) with k 1.2 and b 0.75. No page repeats a word."""
    scores = dict.fromkeys(PAGES, 0.0)
    for word in dict.fromkeys(words(query)):
        having = [page for page in PAGES if word in PAGES[page]]
        for page in having:
            idf = math.log((len(PAGES) + 1) / (len(having) + 0.5))
            scores[page] += idf / (1.3 + 0.9 * len(PAGES[page]) / MEAN)
    return scores


class Search:
    """Replies to three queries with the best two pages each; a turn without a query is the last one."""

    pages = 2

    def __init__(self, problem):
        self.left = 3

    def reply(self, text):
        query = text.rpartition("<search>")[2]  # subtle: </search> stays, but no page has that word
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
    """Return 1 if the last <answer> is right. A completion has only the policy's own words, so an answer on a page
    earns nothing."""
    answers = re.findall("<answer>([^<]*)</answer>", completion)
    right = float(bool(answers) and words(answers[-1]) == words(problem["answer"]))
    return right, {"accuracy": right, "answered": float(bool(answers))}


def with_form(completion, problem):
    """Return answer_reward plus 0.1 if the completion has queries and one answer, and nothing else."""
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
