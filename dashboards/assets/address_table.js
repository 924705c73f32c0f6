// @ts-check
// The parameters of addresses, in one table for both sides: modules import it, and
// dashboards/address.py reads what stands between the first brace and the last as JSON.
// `pages` are those that links lead to; `patterns` define the forms, in the subset of regular
// expressions that both languages share; `chosen` lists the choices that hold for all pages.
export const TABLE = {
  "pages": { "overview": "/", "timeline": "/timeline", "what-if": "/what-if", "compare": "/compare" },
  "patterns": {
    "number": "-?[0-9]{1,19}",
    "index": "[0-9]{1,19}",
    "indices": "([0-9]{1,19}(,[0-9]{1,19})*)?",
    "rows": "[0-9]+\\.[0-9]+(,[0-9]+\\.[0-9]+)*",
    "step": "all|[0-9]{1,19}",
    "rank-step": "[0-9]{1,19}(\\.[0-9]{1,19})?"
  },
  "keys": {
    "rank": { "form": "indices", "chosen": true },
    "report": { "form": "indices", "chosen": true },
    "start": { "form": "number", "chosen": true },
    "end": { "form": "number", "chosen": true },
    "finding": { "form": "finding" },
    "evidence": { "form": "index" },
    "select": { "form": "text" },
    "search": { "form": "text" },
    "assume": { "form": "text" },
    "pinned": { "form": "rows" },
    "hidden": { "form": "rows" },
    "moved": { "form": "rows" },
    "path": { "form": "step" },
    "before": { "form": "rank-step" },
    "after": { "form": "rank-step" },
    "scope": { "form": "scope" }
  }
};
