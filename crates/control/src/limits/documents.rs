//! The values of the keys in etcd: the reports of poolers and the division, as JSON.

use std::collections::BTreeMap;

use pgweir_core::mail::Scarce;
use serde_json::{Value, json};

use super::divide::{PoolerId, Report, Share, Shares};
use crate::sources::json::{self, text};

/// The shares of all limits.
pub(super) type Division = BTreeMap<Scarce, Shares>;

/// The report of a pooler about all limits, which it writes under its lease.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Document {
    /// The pooler's place: its host name, port and peer number. It is the same for a process that replaces another one.
    pub(super) label: String,
    /// Another process takes over this name (`-R`). The process that has written this opens no connection any more.
    pub(super) is_handed_over: bool,
    pub(super) limits: BTreeMap<Scarce, Report>,
}

impl Document {
    pub(super) fn to_value(&self) -> Value {
        let limit = |(of, report): (&Scarce, &Report)| {
            json!({
                "of": name(of), "limit": report.limit, "part": report.part, "held": report.held,
                "unconfirmed": report.unconfirmed, "demand": report.demand, "pids": report.pids,
            })
        };
        json!({
            "label": self.label,
            "handed_over": self.is_handed_over,
            "limits": self.limits.iter().map(limit).collect::<Vec<_>>(),
        })
    }

    /// Reads a pooler's report. A report that is not understood is an error: nothing can be given out beside a pooler that has an unknown part.
    pub(super) fn read(bytes: &[u8]) -> Result<Document, String> {
        let value = json::parse(bytes)?;
        let limits = list(&value, "limits")?.iter().map(|one| {
            let pids = list(one, "pids")?.iter().map(as_number).collect::<Result<_, _>>()?;
            let number = |key| as_number(one.get(key).unwrap_or(&Value::Null));
            let report = Report {
                limit: number("limit")?,
                part: number("part")?,
                held: number("held")?,
                unconfirmed: number("unconfirmed")?,
                demand: number("demand")?,
                pids,
            };
            Ok((read_name(one)?, report))
        });
        Ok(Document {
            label: text(&value, "label").ok_or("it has no label")?.to_owned(),
            is_handed_over: value
                .get("handed_over")
                .and_then(Value::as_bool)
                .ok_or("it has no handed_over")?,
            limits: limits.collect::<Result<_, String>>()?,
        })
    }
}

pub(super) fn division_to_value(division: &Division) -> Value {
    let limit = |(of, shares): (&Scarce, &Shares)| {
        let share = |(id, share): (&PoolerId, &Share)| (id.clone(), json!([share.grant, share.reserved]));
        json!({"of": name(of), "shares": shares.iter().map(share).collect::<serde_json::Map<_, _>>()})
    };
    json!({"limits": division.iter().map(limit).collect::<Vec<_>>()})
}

/// Reads the division. A division that is not understood is an error.
pub(super) fn read_division(bytes: &[u8]) -> Result<Division, String> {
    let value = json::parse(bytes)?;
    let limits = list(&value, "limits")?.iter().map(|one| {
        let shares = one.get("shares").and_then(Value::as_object).ok_or("a limit has no shares")?;
        let share = |(id, share): (&String, &Value)| match share.as_array().map(Vec::as_slice) {
            Some([grant, reserved]) => {
                Ok((id.clone(), Share { grant: as_number(grant)?, reserved: as_number(reserved)? }))
            }
            _ => Err("a share has not two numbers".to_owned()),
        };
        Ok((read_name(one)?, shares.iter().map(share).collect::<Result<_, String>>()?))
    });
    limits.collect()
}

fn name(of: &Scarce) -> Value {
    match of {
        Scarce::Database(database) => json!(["database", &**database]),
        Scarce::Standby(database, node) => json!(["database", &**database, &**node]),
        Scarce::User(user) => json!(["user", &**user]),
    }
}

fn read_name(one: &Value) -> Result<Scarce, String> {
    let words: Vec<&str> = list(one, "of")?.iter().filter_map(Value::as_str).collect();
    match words.as_slice() {
        ["database", database] => Ok(Scarce::Database((*database).into())),
        ["database", database, node] => Ok(Scarce::Standby((*database).into(), (*node).into())),
        ["user", user] => Ok(Scarce::User((*user).into())),
        _ => Err("a limit has an unknown name".to_owned()),
    }
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).ok_or_else(|| format!("{key} is no list"))
}

fn as_number(value: &Value) -> Result<u32, String> {
    value
        .as_u64()
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| "a number is missing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read() {
        let report = Report { limit: 40, part: 13, held: 12, unconfirmed: 1, demand: 20, pids: vec![7, 8] };
        let of = [
            Scarce::Database("a\"b".into()),
            Scarce::Standby("a".into(), "m2".into()),
            Scarce::User("ü".into()),
        ];
        let document = Document {
            label: "host:6432/0".to_owned(),
            is_handed_over: true,
            limits: of.iter().map(|of| (of.clone(), report.clone())).collect(),
        };
        assert_eq!(Document::read(document.to_value().to_string().as_bytes()), Ok(document));
        let shares: Shares = [("p#1".to_owned(), Share { grant: 3, reserved: 5 })].into();
        let division: Division = of.iter().map(|of| (of.clone(), shares.clone())).collect();
        assert_eq!(read_division(division_to_value(&division).to_string().as_bytes()), Ok(division));
    }

    #[test]
    fn a_value_that_lacks_something_is_refused() {
        for bad in ["", "{}", "[]", r#"{"limits":[{}]}"#, r#"{"limits":[{"of":["x"],"shares":{}}]}"#] {
            assert!(read_division(bad.as_bytes()).is_err(), "{bad}");
            assert!(Document::read(bad.as_bytes()).is_err(), "{bad}");
        }
        let negative = r#"{"limits":[{"of":["user","u"],"shares":{"a":[-1,2]}}]}"#;
        assert!(read_division(negative.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_panic(value in any::<String>()) {
            let _ = (Document::read(value.as_bytes()), read_division(value.as_bytes()));
        }
    }
}
