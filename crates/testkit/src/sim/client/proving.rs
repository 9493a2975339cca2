//! The authentication of a client: its answers to Authentication messages.

use pgweir_auth::{Credential, PlainPassword, Proof, Prover};
use pgweir_wire::backend::Authentication;

use crate::sim::network::proto::Message;
use crate::sim::plan::password;
use crate::sim::rng::Rng;

/// A login exchange of one user, whose password all agree on.
pub struct Proving(Option<Prover>);

impl Proving {
    /// The exchange begins.
    #[must_use]
    pub fn new(user: &str) -> Self {
        let credential = Credential::Password(PlainPassword::new(password(user)));
        Proving(Some(Prover::new(user, credential)))
    }

    /// Returns the answer to an Authentication message, which may be empty.
    ///
    /// # Errors
    ///
    /// The reason why the exchange cannot go on.
    pub fn answer(&mut self, message: &Message, rng: &mut Rng) -> Result<Vec<u8>, String> {
        let request = Authentication::parse(&message.body).map_err(|error| error.to_string())?;
        let prover = self.0.take().ok_or("authentication goes on after its end")?;
        match prover.handle(request, &mut |out: &mut [u8]| rng.fill(out)) {
            Proof::Reply(prover, bytes) => {
                self.0 = Some(prover);
                Ok(bytes)
            }
            Proof::Waiting(prover) => {
                self.0 = Some(prover);
                Ok(Vec::new())
            }
            Proof::Done => Ok(Vec::new()),
            Proof::Failed(error) => Err(error.text()),
        }
    }
}
