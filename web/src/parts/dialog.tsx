// Dialogs are the browser's own: they keep the focus, and Escape closes them.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Fault, signIn, type Session } from "../api";

interface Props {
  title: string;
  close: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, close, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => element.current?.showModal(), []);
  return (
    <dialog ref={element} onClose={close} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

export interface Question {
  title: string;
  /** What will happen. */
  text: ComponentChildren;
  /** The verb on the button. */
  verb: string;
  danger?: boolean;
  /** Does it; a fault is shown in the dialog. Answers what to tell afterwards. */
  run: () => Promise<string>;
}

export function Confirm({ question, close, tell }: { question: Question; close: () => void; tell: (text: string) => void }) {
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState<string | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      tell(await question.run());
      close();
    } catch (caught) {
      setFault(caught instanceof Fault ? caught.message : String(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog title={question.title} close={close}>
      <form onSubmit={submit}>
        <div>{question.text}</div>
        {fault && <p class="bad" role="alert">{fault}</p>}
        <div class="choices">
          <button type="button" onClick={close}>Cancel</button>
          <button type="submit" class={question.danger ? "main danger" : "main"} disabled={busy}>
            {busy ? "Working …" : question.verb}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function SignIn({ close, done }: { close: () => void; done: (session: Session) => void }) {
  const [fault, setFault] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event & { currentTarget: HTMLFormElement }) => {
    event.preventDefault();
    const words = new FormData(event.currentTarget);
    setBusy(true);
    setFault(null);
    try {
      done(await signIn(String(words.get("user")), String(words.get("password"))));
      close();
    } catch (caught) {
      setFault(said(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog title="Sign in" close={close}>
      <form onSubmit={submit}>
        <p class="hint">As a user of the console: one of admin_users or stats_users, with the password of auth_file.</p>
        <label>
          User
          <input name="user" autocomplete="username" autocapitalize="none" spellcheck={false} required />
        </label>
        <label>
          Password
          <input name="password" type="password" autocomplete="current-password" />
        </label>
        {fault && <p class="bad" role="alert">{fault}</p>}
        <div class="choices">
          <button type="button" onClick={close}>Cancel</button>
          <button type="submit" class="main" disabled={busy}>Sign in</button>
        </div>
      </form>
    </Dialog>
  );
}

function said(caught: unknown): string {
  if (!(caught instanceof Fault)) return String(caught);
  if (caught.status === 401) return "User or password is wrong.";
  if (caught.status === 429) return "Too many attempts. Wait a moment, then try again.";
  return caught.message;
}
