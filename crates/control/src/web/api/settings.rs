//! The API's settings, each with its documentation: the tables of the settings crate as JSON.

use pgweir_settings::{Change, MAIN_ROWS, Origin, Status};
use serde_json::{Value, json};

use super::super::WebState;
use super::super::access::Reader;

pub(super) fn settings(web: &WebState, reader: &Reader) -> Value {
    let config = web.config();
    let rows: Vec<Value> = MAIN_ROWS
        .iter()
        .map(|row| {
            let value = row.render(&config.main);
            let changed = value.as_deref() != row.default;
            json!({
                "name": row.name,
                "group": row.group,
                "value": value.filter(|_| reader.sees_names()),
                "default": row.default,
                "takes": row.kind.describe(),
                "change": match row.change {
                    Change::Reload | Change::Recycle => "reload",
                    Change::Restart => "restart",
                },
                "origin": match row.origin {
                    Origin::PgBouncer => "pgbouncer",
                    Origin::Ours => "pgweir",
                },
                "in_effect": row.status == Status::InEffect,
                "documentation": row.doc.trim(),
                "changed": changed,
            })
        })
        .collect();
    json!({ "settings": rows })
}
