"""people.py - questions about people, and the pages that answer them, for a policy that may look something up
(environments/search.py). Who was born where was drawn: no other page, and no reasoning, says it."""

import random

from verifiers import held_out

FIRST = "Ada Ben Cleo Dan Eve Finn Gus Hal Ida Jon Kim Leo Mia Ned Ola Pia".split()
LAST = "Abel Berg Cole Dahl Egan Frey Gold Hunt Ives Kerr Lund Moor Nash Otto Pohl Reed".split()
TOWNS = "Athens Berlin Cairo Dakar Essen Graz Hanoi Izmir Jena Kyiv Lima Milan Nice Oslo".split()
KINDS = {  # how it is asked, and what the page says
    "born": ("Where was {} born?", "{} was born in {}."),
    "works": ("Where does {} work?", "{} works in {}."),
}


def people(seed=0):
    """-> problems to train on, those held out, and the pages. Each problem has the query that finds its page."""
    rng = random.Random(seed)
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
