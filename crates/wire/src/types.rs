//! Numbers of data types, as Parse and ParameterDescription have them.

/// The number from which on objects are users' own (`FirstNormalObjectId`).
const FIRST_OWN_OID: u32 = 16_384;

/// Whether parameter types, four bytes each, are PostgreSQL's own. With values of other types (domains), code of users may run.
#[must_use]
pub fn are_built_in(types: &[u8]) -> bool {
    let (types, _) = types.as_chunks();
    types.iter().all(|oid| u32::from_be_bytes(*oid) < FIRST_OWN_OID)
}
