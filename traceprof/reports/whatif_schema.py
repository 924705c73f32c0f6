"""The JSON schema of what-if answers, made from their types.

`python -m traceprof.reports.whatif_schema` writes it to stdout: `make schema`.
"""

from __future__ import annotations

import sys

from traceprof.documents.whatif import SCHEMA, Document
from traceprof.reports.document_schema import schema_text


def text() -> str:
    """Return the schema as it ships."""
    return schema_text(Document, SCHEMA)


if __name__ == "__main__":
    sys.stdout.write(text())
