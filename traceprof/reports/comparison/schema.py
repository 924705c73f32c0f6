"""The JSON schema of a comparison, made from its types.

`python -m traceprof.reports.comparison.schema` writes it to stdout: `make schema`.
"""

from __future__ import annotations

import sys

from traceprof.documents.comparison import SCHEMA, Comparison
from traceprof.reports.document_schema import schema_text


def text() -> str:
    """Return the schema as it ships."""
    return schema_text(Comparison, SCHEMA)


if __name__ == "__main__":
    sys.stdout.write(text())
