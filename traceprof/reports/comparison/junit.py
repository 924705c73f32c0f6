"""The gates of a comparison as JUnit XML: a test case for each."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from traceprof.errors import one_line
from traceprof.reports.comparison.sections import verdict

if TYPE_CHECKING:
    from traceprof.documents.comparison import Comparison

SUITE = "traceprof compare"


def render(comparison: Comparison) -> str:
    """Return a test suite; a gate that is not met, or inconclusive, is a failure."""
    failed = [gate for gate in comparison.gates if gate.outcome != "met"]
    counts = {"tests": str(len(comparison.gates)), "failures": str(len(failed)), "errors": "0"}
    suites = Element("testsuites", counts)
    suite = SubElement(suites, "testsuite", {"name": SUITE, **counts, "skipped": "0"})
    properties = SubElement(suite, "properties")
    for name, value in (
        ("before", comparison.before.name),
        ("after", comparison.after.name),
        ("step", verdict(comparison)),
    ):
        SubElement(properties, "property", {"name": name, "value": one_line(value)})
    for gate in comparison.gates:
        case = SubElement(suite, "testcase", {"name": one_line(gate.gate), "classname": SUITE})
        if gate.outcome != "met":
            failure = {"message": one_line(gate.reason), "type": gate.outcome}
            SubElement(case, "failure", failure).text = one_line(verdict(comparison))
    reasons = [f"Not comparable: {reason}" for reason in comparison.comparable.reasons]
    SubElement(suite, "system-out").text = "\n".join(map(one_line, reasons))
    indent(suites)
    written: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
    return f"{written.decode()}\n"
