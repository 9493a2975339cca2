// How a crowd becomes a number of marks that the eye can take in.

export type Mark = "active" | "pinned" | "waiting" | "idle" | "other" | "free";

/** The number of things that one mark stands for, so that there are at most `most` marks: 1, 2, 5, 10, 20, 50 ... */
export function dotSize(things: number, most: number): number {
  for (let power = 1; ; power *= 10) {
    for (const step of [1, 2, 5]) {
      if (things <= step * power * most) return step * power;
    }
  }
}

/** One state for each mark. A state with any member has a mark, however few they are. */
export function marks(states: [Mark, number][], each: number): Mark[] {
  return states.flatMap(([state, members]) => Array<Mark>(members <= 0 ? 0 : Math.max(1, Math.round(members / each))).fill(state));
}
