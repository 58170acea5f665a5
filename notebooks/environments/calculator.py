"""calculator.py - a tool for a policy (methods/tools.py), and how any tool is asked: in bounded time, and never trusted.

A call is text from a model, so it is hostile: it is matched against one pattern and never run. And a tool may be
anything: it may raise, hang, or answer with a book.
"""

import contextlib
import operator
import re
import threading
import time

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NUMBER = r"\s*(-?[0-9]{1,9})\s*"


def calculator(call):
    """The sum, difference or product of two whole numbers of at most 9 digits: "47*83" -> 3901. Raises ValueError."""
    found = re.fullmatch(f"{NUMBER}([-+*]){NUMBER}", call)
    if not found:
        raise ValueError(
            f"{call[:50]!r} is not one sum, difference or product of two whole numbers"
        )
    return OPERATIONS[found[2]](int(found[1]), int(found[3]))


def answer_calls(tool, texts, seconds=2.0, longest=100):
    """Ask the tool what the last <tool>..</tool> of each text holds, side by side -> its answers, as text.

    None where no call has ended (it may begin in the prompt); "error" where the tool raises, says nothing, or is not done within so many seconds in
    all. An answer has at most so many characters. The thread of a tool that never returns stays until the program ends, and changes
    nothing any more."""
    calls = [text.rpartition("<tool>")[2].partition("</tool>") for text in texts]
    answers = ["error" if end else None for _, end, _ in calls]

    def ask(i):
        with contextlib.suppress(Exception):
            answers[i] = str(tool(calls[i][0]))[:longest] or "error"

    asked = [i for i, answer in enumerate(answers) if answer]
    threads = [threading.Thread(target=ask, args=[i], daemon=True) for i in asked]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return answers.copy()
