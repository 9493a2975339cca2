// What can be done with a row, behind one button. The list is the browser's own popover: Escape or a click elsewhere closes it.

import { useEffect, useRef, useState } from "preact/hooks";

export interface MenuItem {
  text: string;
  /** An address, for a link ... */
  to?: string;
  /** ... or what is done. */
  run?: () => void;
  danger?: boolean;
}

export function Menu({ label, items }: { label: string; items: MenuItem[] }) {
  const [open, setOpen] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLUListElement>(null);
  // The press that closes the list must not open it again.
  const wasOpen = useRef(false);
  useEffect(() => {
    if (!open || !list.current || !button.current) return;
    list.current.showPopover();
    place(list.current, button.current.getBoundingClientRect());
    list.current.querySelector<HTMLElement>("a, button")?.focus();
  }, [open]);
  if (items.length === 0) return null;
  return (
    <>
      <button
        type="button"
        class="plain more-button"
        ref={button}
        aria-expanded={open}
        aria-label={label}
        onPointerDown={() => { wasOpen.current = open; }}
        onClick={() => { setOpen(!wasOpen.current); wasOpen.current = false; }}
      >
        <span aria-hidden="true">⋯</span>
      </button>
      {open && (
        <ul class="menu" popover="auto" ref={list} onToggle={(event) => { if ((event as unknown as ToggleEvent).newState === "closed") setOpen(false); }}>
          {items.map((item) => (
            <li key={item.text}>
              {item.to !== undefined ? (
                <a href={item.to} onClick={() => setOpen(false)}>{item.text}</a>
              ) : (
                <button type="button" class={item.danger ? "danger" : ""} onClick={() => { setOpen(false); item.run?.(); }}>{item.text}</button>
              )}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

/** Under its button, or above it where the screen ends. */
function place(list: HTMLElement, at: DOMRect): void {
  const { width, height } = list.getBoundingClientRect();
  const below = at.bottom + 4;
  const top = below + height > window.innerHeight ? Math.max(4, at.top - height - 4) : below;
  list.style.top = `${top}px`;
  list.style.left = `${Math.max(4, Math.min(at.right - width, window.innerWidth - width - 4))}px`;
}
