// The little of Markdown that the settings' documentation uses: `code`, **bold**, [links](of the web).

import type { ComponentChildren } from "preact";

export type Piece = { kind: "text" | "code" | "bold"; text: string } | { kind: "link"; text: string; to: string };

const PATTERN = /`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\((https?:\/\/[^)\s]+)\)/g;

export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(PATTERN)) {
    if (match.index > from) found.push({ kind: "text", text: text.slice(from, match.index) });
    const [whole, code, bold, link, to] = match;
    if (code !== undefined) found.push({ kind: "code", text: code });
    else if (bold !== undefined) found.push({ kind: "bold", text: bold });
    else found.push({ kind: "link", text: link!, to: to! });
    from = match.index + whole.length;
  }
  if (from < text.length) found.push({ kind: "text", text: text.slice(from) });
  return found;
}

export function Markdown({ text }: { text: string }) {
  return <p>{pieces(text).map(drawn)}</p>;
}

function drawn(piece: Piece, at: number): ComponentChildren {
  switch (piece.kind) {
    case "code":
      return <code key={at}>{piece.text}</code>;
    case "bold":
      return <b key={at}>{piece.text}</b>;
    case "link":
      return <a key={at} href={piece.to} rel="noreferrer">{piece.text}</a>;
    default:
      return piece.text;
  }
}
