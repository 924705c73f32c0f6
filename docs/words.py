"""Count words that make a reader stop, over the three packages: `python docs/words.py`.

The exit status is 1 where one is used more often than its limit. Comments count, too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("traceprof", "dashboards", "instrument")
LIMITS = {"told": 20, "tell": 60, "met": 20, "likewise": 10}
"""How often a word may stand in all source, in any form of `FORMS`."""
FORMS = {"tells": "tell"}
MAX_OPENING_QUESTIONS = 80
"""Docstrings that may open with a question word instead of a noun or a verb."""
QUESTION_WORDS = {"how", "what", "when", "where", "whether", "which", "who", "whose", "why"}


def main() -> int:
    """Print the counts, and return the exit status."""
    texts = [path.read_text(encoding="utf-8") for name in PACKAGES for path in sources(name)]
    counted = re.compile(rf"\b(?:{'|'.join([*LIMITS, *FORMS])})\b", re.IGNORECASE)
    found = [word.lower() for text in texts for word in counted.findall(text)]
    words = Counter(FORMS.get(word, word) for word in found)
    counts = [(f"`{word}`", words[word], limit) for word, limit in LIMITS.items()]
    opening = sum(map(num_opening_questions, texts))
    counts.append(("docstrings that open with a question word", opening, MAX_OPENING_QUESTIONS))
    for what, count, limit in counts:
        print(f"{'ok ' if count <= limit else 'too many'} {what}: {count} (at most {limit})")
    return int(any(count > limit for _, count, limit in counts))


def sources(package: str) -> list[Path]:
    """Return the Python files of a package."""
    return sorted((ROOT / package).rglob("*.py"))


def num_opening_questions(text: str) -> int:
    """Count the docstrings of a module that open with a question word."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    docstrings = [ast.get_docstring(node) or "" for node in nodes]
    opening = [re.findall(r"[a-z]+", docstring.lower())[:1] for docstring in docstrings]
    return sum(words[0] in QUESTION_WORDS for words in opening if words)


if __name__ == "__main__":
    sys.exit(main())
