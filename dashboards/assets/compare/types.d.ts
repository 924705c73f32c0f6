// What the parts of the comparison hand to each other.

/** A side, as dashboards/pages/compare.py describes it: `rank` and `step` are shown at first. */
export interface Side {
  name: "before" | "after";
  path: string;
  rank: number;
  step: number | null;
  ranks: { number: number; label: string }[];
}

/** A training step of a rank; the number is null where all that is judged is one. Times are ns. */
export interface Step { number: number | null; start: string; length: number }

export interface Choice { rank: number; step: number | null }
