"""structured.py - verifies answers that are not numbers: JSON by a schema, tool calls, episodes of a search agent
(chapter 14; the chapter on verifier-based RL, 5.1), and translations (chapter 9.5).
"""

import functools
import json
import math
import operator
import re
from collections import Counter

from verifiers import RuleSpec, aggregate, extract_boxed_answer, grade_answer

MAX_JSON = 20_000  # characters of one JSON value

# A word, to measure the length of the thinking. Text is split at white space, as in the chapter. But a
# Chinese or Japanese character is a word, and so are 16 characters without a space.
WORD = re.compile(r"[\u3040-\u9fff]|[^\s\u3040-\u9fff]{1,16}")


def verify_json(text: str, schema: dict) -> dict:
    """Return a dict. parses: 1.0 for JSON; valid: 1.0 if it also conforms to the schema; value: what was
    read, or None.

    Python's reader accepts NaN and a repeated key; here both are refused, since a repeated key would
    leave the choice to us. Example: '{"n": 3}' is valid against
    {"type": "object", "properties": {"n": {"type": "integer", "enum": [3, 4]}}}.
    """
    try:
        value = json.loads(text[: MAX_JSON + 1], object_pairs_hook=_strict, parse_constant=_strict)
        valid = len(text) <= MAX_JSON and conforms(value, schema)
        return {"parses": 1.0, "valid": float(valid), "value": value}
    except (ValueError, RecursionError):  # RecursionError: a thousand opening brackets
        return {"parses": 0.0, "valid": 0.0, "value": None}


def _strict(found):
    if isinstance(found, str) or len(dict(found)) < len(found):  # "NaN", or the pairs of an object
        raise ValueError(found)
    return dict(found)


_JSON_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def conforms(value, schema: dict) -> bool:
    """Return True if the value conforms to the schema. This is the part of JSON Schema that function
    calls use: type, enum, required, properties, additionalProperties, items. subtle: in Python True
    is an int and equals 1; in JSON it is neither."""
    kind = schema.get("type")
    if kind and not isinstance(value, _JSON_TYPES[kind]):
        return False
    if kind and isinstance(value, bool) != (kind == "boolean"):
        return False
    if "enum" in schema and not any(
        type(value) is type(item) and value == item for item in schema["enum"]
    ):
        return False
    if isinstance(value, list):
        return all(conforms(item, schema.get("items", {})) for item in value)
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    return (
        all(name in value for name in schema.get("required", ()))
        and (schema.get("additionalProperties", True) or value.keys() <= known.keys())
        and all(conforms(value[name], known[name]) for name in value if name in known)
    )


def verify_tool_call(text: str, tools: dict) -> dict:
    """Return a dict. calls, valid: the numbers of all tool calls and of well-formed ones; frac: valid / calls
    or 0.0.

    A call has Qwen3's form, <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>. tools:
    {name: JSON schema of its arguments}. A call in the thinking does not count.
    """
    name = {"type": "string", "enum": [*tools]}
    schema = {"type": "object", "required": ["name", "arguments"], "additionalProperties": False}
    schema["properties"] = {"name": name, "arguments": {"type": "object"}}
    said = text.rpartition("</think>")[2]
    bodies = [part.partition("</tool_call>") for part in said.split("<tool_call>")[1:]]
    read = [verify_json(body, schema) for body, closed, _ in bodies if closed]
    calls = [out["value"] for out in read if out["valid"]]
    valid = sum(conforms(call["arguments"], tools[call["name"]]) for call in calls)
    return {"calls": len(bodies), "valid": valid, "frac": valid / max(1, len(bodies))}


def weights(**of) -> list[RuleSpec]:
    """Return rules that read scores by their names: weights(answer=1.0, format=0.1)."""
    return [RuleSpec(name, weight, operator.itemgetter(name)) for name, weight in of.items()]


COSTS = ((3, 1.0), (6, 0.7), (10, 0.3), (math.inf, 0.0))  # (up to this many calls, score)
SEARCH_RULES = weights(accuracy=0.7, format=0.05, call_success=0.1, cost=0.1, length_term=0.05)


def search_agent_reward(trajectory, problem):
    """0.7 accuracy + 0.05 format + 0.1 call_success + 0.1 cost + 0.05 length_term (the chapter on
    verifier-based RL, 5.1, which calls the last one length).

    trajectory: the messages of an episode, {"role": "assistant", "content": text with <tool_call>s} and, from
    the environment, {"role": "tool", "content": text, "error": bool}. problem: "answer", and "tools" (see
    verify_tool_call). cost is 1 up to 3 calls, 0.7 up to 6, 0.3 up to 10, then 0; length_term is 1 up to 8000
    words, then 0.5. Without calls, format and call_success are 0, as in the chapter. If they were 1, silence
    would earn 0.30 and a failed try only 0.20.
    """
    said = [message["content"] for message in trajectory if message["role"] == "assistant"] or [""]
    results = [message for message in trajectory if message["role"] == "tool"]
    checks = [verify_tool_call(text, problem.get("tools", {})) for text in said]
    calls, valid = (sum(check[key] for check in checks) for key in ("calls", "valid"))
    succeeded = min(valid, sum(not result.get("error") for result in results))
    final = said[-1].rpartition("</think>")[2]
    said_last = final.rpartition("<answer>")[2].partition("</answer>")[0]
    answer = extract_boxed_answer(final) or said_last
    cost = next(left for most, left in COSTS if calls <= most)
    words = len(WORD.findall("\n".join(said)))
    scores = {
        "accuracy": float(grade_answer(answer, problem["answer"])),
        "format": valid / max(1, calls),
        "call_success": succeeded / max(1, calls),
        "cost": cost,
        "length_term": 1.0 if words <= 8000 else 0.5,
    }
    parts = scores | {"calls": calls, "answered": float(answer.strip() != "")}
    return aggregate(scores, SEARCH_RULES), parts


# ---- Translation ---------------------------------------------------------------------------------


def verify_translation(candidate: str, references) -> dict:
    """Return a dict. bleu: BLEU-4 of one sentence, BP (p_1 p_2 p_3 p_4)^(1/4) (Papineni et al. 2002);
    precisions and brevity: its factors.

    p_n is the share of the candidate's n-grams that a reference has, too. Each counts at most as often as it
    occurs in any one reference. For n > 1, one is added to numerator and denominator (Lin and Och 2004), or
    most single sentences would get 0. BP = min(1, exp(1 - r/c)), where the candidate has c words and the
    reference closest in length has r. Example (Papineni): seven times "the" against "the cat is on the mat"
    has p_1 = 2/7.
    """
    references = [references] if isinstance(references, str) else references
    words, *golds = (_BLEU_WORD.findall(text.lower()) for text in (candidate, *references))
    precisions = []
    for n in range(1, 5):
        said = ngrams(words, n)
        smooth = float(n > 1)
        # Counter's | takes the larger count.
        allowed = functools.reduce(operator.or_, (ngrams(gold, n) for gold in golds))
        precisions.append(((said & allowed).total() + smooth) / max(1.0, said.total() + smooth))
    closest = min(map(len, golds), key=lambda length: (abs(length - len(words)), length))
    brevity = min(1.0, math.exp(1 - closest / max(1, len(words))))
    bleu = brevity * math.prod(precisions) ** 0.25
    return {"bleu": bleu, "precisions": precisions, "brevity": brevity}


# A Chinese character is a word.
_BLEU_WORD = re.compile(r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+|[^\w\s]")


def ngrams(words, n):
    return Counter(zip(*(words[i:] for i in range(n))))
