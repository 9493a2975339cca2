//! Groups that are one statement about a transaction block: BEGIN, COMMIT and their like.

use pgweir_sql::Block;
use pgweir_wire::frontend::{BindHead, Describe, Execute, Parse, Query, Target, tag};
use pgweir_wire::{Message, Messages};

use crate::limits::BEGIN_BYTES_MAX;

/// A group that is nothing but one of these statements, or a BEGIN at the front of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockGroup {
    pub(crate) block: Block,
    pub(crate) len: usize,
    /// Whether the group ends with it. `false`: further messages follow before Sync, or are still to come.
    pub(crate) is_whole: bool,
    /// The answers before CommandComplete, by the type bytes of the messages that asked for them.
    pub(crate) asked: [u8; 4],
}

impl BlockGroup {
    pub(crate) fn is(&self, block: Block) -> bool {
        self.block == block
    }

    /// Whether PostgreSQL forgets the client's unnamed statement with this group: it is a Query, or prepares a statement without a name.
    pub(crate) fn replaces_unnamed(&self) -> bool {
        let is_query = self.asked == [0; 4];
        is_query || self.asked[0] == tag::PARSE
    }

    /// Whether these bytes contain the group and nothing else.
    pub(crate) fn is_all_of(&self, bytes: &[u8]) -> bool {
        self.is_whole && self.len == bytes.len()
    }

    /// Returns the group as a rollback. PostgreSQL answers COMMIT with ROLLBACK if the transaction has failed.
    pub(crate) fn rolling_back(self) -> BlockGroup {
        BlockGroup { block: Block::Rollback, ..self }
    }
}

/// The rest of a Bind without parameters: no formats, no values, no formats of results.
pub(crate) const NO_PARAMETERS: [u8; 6] = [0; 6];

/// Whether the rest of a Bind has no parameters and no formats that matter to a statement without columns. (libpq names a format for
/// all columns.)
fn is_without_parameters(tail: &[u8]) -> bool {
    tail == NO_PARAMETERS || matches!(tail, [0, 0, 0, 0, 0, 1, 0, 0 | 1])
}

/// The group at the front of `bytes`, if it is one statement about a transaction block, in either protocol; or the messages up to the
/// Execute of such a statement, if no Sync follows them. `prepared` knows the client's prepared statements.
pub(crate) fn block_at_front<'a>(
    bytes: &'a [u8],
    prepared: impl Fn(&[u8]) -> Option<(Block, &'a [u8])>,
) -> Option<(BlockGroup, &'a [u8])> {
    /// The stage behind Execute.
    const EXECUTED: u8 = 5;
    let mut group: Option<(Block, &[u8])> = None;
    let mut asked = [0; 4];
    // Parse, Describe of the statement, Bind, Describe of the portal, Execute, Sync: in this order, some left out.
    let mut stage = 0;
    let mut messages = Messages::of(bytes);
    while stage < EXECUTED {
        let message = messages.next().filter(Message::is_whole)?;
        if message.end() > BEGIN_BYTES_MAX {
            return None;
        }
        let body = message.body();
        let reached = match message.tag() {
            tag::QUERY if stage == 0 => {
                let text = Query::parse(body).ok()?.text;
                let block = pgweir_sql::block(text)?;
                return Some((BlockGroup { block, len: message.end(), is_whole: true, asked }, text));
            }
            tag::PARSE => {
                let parse = Parse::parse(body).ok().filter(|parse| parse.name.is_empty())?;
                group = Some((pgweir_sql::block(parse.query)?, parse.query));
                asked[0] = tag::PARSE;
                1
            }
            tag::DESCRIBE => match Describe::parse(body).ok()? {
                Describe { target: Target::Statement, name: b"" } if stage == 1 => {
                    asked[1] = b'S';
                    2
                }
                Describe { target: Target::Portal, name: b"" } if stage == 3 => {
                    asked[3] = tag::DESCRIBE;
                    4
                }
                _ => return None,
            },
            tag::BIND => {
                let head = BindHead::parse_prefix(body)?;
                if !head.portal.is_empty() || !is_without_parameters(body.get(head.tail..)?) {
                    return None;
                }
                if !head.statement.is_empty() {
                    if stage > 0 {
                        return None;
                    }
                    group = Some(prepared(head.statement)?);
                }
                asked[2] = tag::BIND;
                3
            }
            tag::EXECUTE => {
                let execute = Execute::parse(body).ok()?;
                if !execute.portal.is_empty() || execute.max_rows != 0 || stage < 3 {
                    return None;
                }
                EXECUTED
            }
            _ => return None,
        };
        if reached <= stage {
            return None;
        }
        stage = reached;
    }
    let (block, text) = group?;
    let executed = messages.position();
    let sync = messages.next().filter(|message| message.tag() == tag::SYNC);
    if messages.is_malformed() {
        return None;
    }
    let len = sync.map_or(executed, |sync| sync.end());
    Some((BlockGroup { block, len, is_whole: sync.is_some(), asked }, text))
}
