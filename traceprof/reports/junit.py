"""The gates of a comparison for continuous integration: JUnit XML, and GitHub's annotations."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from traceprof.documents.comparison import Comparison
from traceprof.errors import one_line

SUITE = "traceprof compare"


def render_comparison(comparison: Comparison) -> str:
    """Return JUnit XML: a test case for each gate, which fails where the gate is not met."""
    failed = [gate for gate in comparison.gates if gate.outcome != "met"]
    counts = {"tests": str(len(comparison.gates)), "failures": str(len(failed)), "errors": "0"}
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": SUITE, **counts, "skipped": "0"})
    properties = SubElement(suite, "properties")
    for name, value in (
        ("before", comparison.before.name),
        ("after", comparison.after.name),
        ("step", comparison.headline),
    ):
        SubElement(properties, "property", {"name": name, "value": one_line(value)})
    for gate in comparison.gates:
        case = SubElement(suite, "testcase", {"name": one_line(gate.gate), "classname": SUITE})
        if gate.outcome != "met":
            failure = {"message": one_line(gate.reason), "type": gate.outcome}
            SubElement(case, "failure", failure).text = one_line(comparison.headline)
    reasons = [f"Not comparable: {reason}" for reason in comparison.comparable.reasons]
    SubElement(suite, "system-out").text = "\n".join(map(one_line, reasons))
    indent(suites)
    written: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
    return f"{written.decode()}\n"


def github_annotations(comparison: Comparison) -> str:
    """Return workflow commands of GitHub, one a line; a notice if all gates are met."""
    return "".join(f"{line}\n" for line in _commands(comparison))


def _commands(comparison: Comparison) -> Iterator[str]:
    for reason in comparison.comparable.reasons:
        yield _command("warning", "traceprof: not comparable", reason)
    failed = [gate for gate in comparison.gates if gate.outcome != "met"]
    for gate in failed:
        yield _command("error", f"traceprof: {gate.gate} {gate.outcome}", gate.reason)
    if not failed:
        yield _command("notice", "traceprof", comparison.headline)


def _command(kind: str, title: str, message: str) -> str:
    escaped = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={escaped}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return one_line(text).replace("%", "%25")
