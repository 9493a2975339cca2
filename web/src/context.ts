// What every page needs to know: who looks, and how to ask for an action.

import { createContext } from "preact";
import { useContext } from "preact/hooks";

import type { Session } from "./api";
import type { Question } from "./parts/dialog";

export interface Services {
  session: Session;
  /** Asks for a confirmation, then acts. */
  ask: (question: Question) => void;
  /** Opens the sign-in. */
  signIn: () => void;
  /** Shows a short notice. */
  tell: (text: string) => void;
}

export const ServicesContext = createContext<Services | null>(null);

export function useServices(): Services {
  const services = useContext(ServicesContext);
  if (!services) throw new Error("a page is drawn inside of the application only");
  return services;
}
