//! Groups that only set something for their transaction (SET LOCAL, SET TRANSACTION, `set_config` with `true`).

use pgweir_sql::sets_locally;
use pgweir_wire::frontend::{BindHead, Describe, Parse, Query, Target, tag};

use super::whole_messages;

/// Returns the length of the group at the front of `bytes`, if all of it is there and it does nothing but set something for its transaction.
/// `named` returns the text of the client's prepared statement with a name.
pub(crate) fn locals_at_front<'a>(bytes: &[u8], named: impl Fn(&[u8]) -> Option<&'a [u8]>) -> Option<u32> {
    // The unnamed statement, if the group prepares it; and whether anything was bound that is then executed.
    let (mut unnamed_is_local, mut binds, mut executes) = (false, false, false);
    for message in whole_messages(bytes) {
        let body = message.body();
        match message.tag() {
            tag::QUERY if message.start == 0 => {
                return sets_locally(Query::parse(body).ok()?.text).then_some(message.end() as u32);
            }
            tag::PARSE => {
                let parse = Parse::parse(body).ok().filter(|parse| parse.name.is_empty())?;
                unnamed_is_local = sets_locally(parse.query).then_some(true)?;
            }
            tag::BIND => {
                let name = BindHead::parse_prefix(body)?.statement;
                let is_local = match name {
                    b"" => unnamed_is_local,
                    _ => sets_locally(named(name)?),
                };
                binds = is_local.then_some(true)?;
            }
            tag::DESCRIBE => match Describe::parse(body).ok()? {
                Describe { target: Target::Statement, name } if !name.is_empty() => {
                    sets_locally(named(name)?).then_some(())?;
                }
                _ => {}
            },
            tag::EXECUTE => executes = true,
            tag::SYNC if executes && binds => return Some(message.end() as u32),
            _ => return None,
        }
    }
    None
}
