//! The proof of a client's user: a state machine for each method, with any number of rounds. A step takes a message of the client, or an
//! answer of the control plane, and returns the next step. The stored secret that some methods need is fetched before.
//!
//! A new method is a row in [`Way::of`] and a variant of [`Exchange`].

use std::net::IpAddr;
use std::sync::Arc;

use pgweir_auth::{Guard, HbaMethod, Learned, Method, PlainPassword, Refusal, Verdict, read_password};

use crate::errors::Fault;
use crate::worker::login::inquiry::{About, Answer, Checker, Obstacle};

/// The steps that a client must take to prove its user.
pub(crate) enum Way {
    /// No proof is needed: any client may pass.
    Free,
    /// The client must pass an exchange that the user's stored secret decides.
    Secret(Method),
    /// The client must have a certificate with its user's name, or with one that this map allows.
    Certificate(Option<Box<str>>),
    /// The client's operating system user must have the same name, or one that this map allows.
    OsUser(Option<Box<str>>),
    /// The client must send a password that this external service accepts.
    Service(Checker),
}

impl Way {
    /// The table of methods. `map`: that of the rule.
    pub(crate) fn of(method: &HbaMethod, map: Option<&str>) -> Result<Way, Fault> {
        let map = map.map(Box::from);
        Ok(match method {
            HbaMethod::Reject => return Err(Fault::NotAllowedIn("login rejected")),
            HbaMethod::Trust => Way::Secret(Method::Trust),
            HbaMethod::Password => Way::Secret(Method::Plain),
            HbaMethod::Md5 => Way::Secret(Method::Md5),
            HbaMethod::ScramSha256 => Way::Secret(Method::ScramSha256),
            HbaMethod::Peer => Way::OsUser(map),
            HbaMethod::Cert => Way::Certificate(map),
            HbaMethod::Pam => Way::Service(Checker::Pam),
            HbaMethod::Ldap(options) => Way::Service(Checker::Ldap(Arc::clone(options))),
        })
    }
}

/// An exchange between two steps.
pub(crate) enum Exchange {
    /// The exchange is decided by the user's stored secret.
    Guard(Guard),
    /// The client was asked for its password, which this service will check.
    Password(Checker),
    /// The service checks the password. If it is wrong, the client gets this refusal.
    Checking(PlainPassword, Refusal),
    /// The control plane was asked for the name of the client's operating system user, which this map may translate.
    OsUser(Option<Box<str>>),
}

/// The input of a step.
pub(crate) enum Input<'a> {
    /// The body of a password or SASL message.
    Message(&'a [u8]),
    /// The control plane's answer to a question.
    Answer(Answer),
}

/// The result of a step.
pub(crate) enum Next {
    /// The bytes to send to the client, which must answer.
    Say(Vec<u8>, Exchange),
    /// The question to send to the control plane.
    Ask(About, Exchange),
    /// The exchange is over: the client has proven its user, or was refused.
    Decided(Verdict),
    /// The name of the client's operating system user, if it has one, and the map that may translate it.
    Named(Option<Arc<str>>, Option<Box<str>>),
    /// The control plane has not answered the question. The client gets this error; the log has the reason.
    Failed(Fault),
}

impl Exchange {
    /// Takes a step. `user` is the user that the client wants to be, `address` the client's address.
    pub(crate) fn handle(
        self,
        input: Input<'_>,
        user: &Arc<str>,
        address: Option<IpAddr>,
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Next {
        match (self, input) {
            (Exchange::Guard(guard), Input::Message(body)) => {
                Next::of(guard.handle(body, &mut |out: &mut [u8]| random(out)))
            }
            (Exchange::Password(by), Input::Message(body)) => match read_password(body) {
                Ok(password) => {
                    let refusal = match by {
                        Checker::Pam => Refusal::Pam,
                        Checker::Ldap(_) => Refusal::WrongPassword,
                    };
                    let user = Arc::clone(user);
                    let about = About::Password { user, password: password.clone(), address, by };
                    Next::Ask(about, Exchange::Checking(password, refusal))
                }
                Err(refusal) => Next::Decided(Verdict::Refused(refusal)),
            },
            (Exchange::Checking(password, _), Input::Answer(Answer::Password(true))) => {
                Next::Decided(Verdict::Proven { send: Vec::new(), learned: Learned::Password(password) })
            }
            (Exchange::Checking(_, refusal), Input::Answer(Answer::Password(false))) => {
                Next::Decided(Verdict::Refused(refusal))
            }
            (Exchange::OsUser(map), Input::Answer(Answer::OsUser(name))) => Next::Named(name, map),
            (_, Input::Answer(answer)) => Next::Failed(unavailable(&answer)),
            // A message while the control plane is asked proves nothing.
            (_, Input::Message(_)) => {
                Next::Failed(Fault::Protocol("expected no further password message".into()))
            }
        }
    }
}

impl Next {
    /// Turns a verdict of a guard into the next step: the exchange goes on, or it is decided.
    pub(crate) fn of(verdict: Verdict) -> Next {
        match verdict {
            Verdict::Ask(guard, message) => Next::Say(message, Exchange::Guard(guard)),
            decided => Next::Decided(decided),
        }
    }
}

/// Returns the error for a client whose question was not answered. An answer to another question proves nothing.
pub(crate) fn unavailable(answer: &Answer) -> Fault {
    match answer {
        Answer::Unavailable(Obstacle::Unreachable) => Fault::SecretUnavailable,
        Answer::Unavailable(Obstacle::Failing) => Fault::SecretNotAsked,
        Answer::Unavailable(Obstacle::ShuttingDown) => Fault::ServerShuttingDown,
        _ => Fault::NoForcedUser,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(exchange: Exchange, input: Input<'_>) -> Next {
        exchange.handle(input, &"alice".into(), None, &mut |out| out.fill(7))
    }

    #[test]
    fn a_service_checks_what_the_client_says() {
        let Next::Ask(About::Password { user, .. }, exchange) =
            step(Exchange::Password(Checker::Pam), Input::Message(b"secret\0"))
        else {
            panic!("the service is asked");
        };
        assert_eq!(&*user, "alice");
        let Next::Decided(Verdict::Proven { .. }) = step(exchange, Input::Answer(Answer::Password(true)))
        else {
            panic!("the service said yes");
        };
    }

    #[test]
    fn an_answer_to_another_question_proves_nothing() {
        let answers = [Answer::Password(true), Answer::NoUser, Answer::Unavailable(Obstacle::Unreachable)];
        for answer in answers {
            assert!(matches!(step(Exchange::OsUser(None), Input::Answer(answer)), Next::Failed(_)));
        }
    }

    #[test]
    fn a_message_at_the_wrong_time_proves_nothing() {
        let checking = Exchange::Checking(PlainPassword::new("x"), Refusal::Pam);
        assert!(matches!(step(checking, Input::Message(b"x\0")), Next::Failed(_)));
    }
}
