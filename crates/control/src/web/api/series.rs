//! The API's series: the last hour, column by column.

use serde_json::{Map, Value, json};

use super::super::WebState;
use super::super::access::Reader;
use super::super::model::COLUMNS;
use super::super::reply::Refusal;
use super::query::Query;

pub(super) fn series(web: &WebState, reader: &Reader, query: &Query) -> Result<Value, Refusal> {
    let window_s = query.number("window", 10, 3600, 300)?;
    let after_s = match query.get("since") {
        None => 0.0,
        Some(text) => text
            .parse::<f64>()
            .ok()
            .filter(|since| since.is_finite())
            .ok_or_else(|| Refusal::Bad("\"since\" must be a Unix time".to_owned()))?,
    };
    let user = query.get("user");
    if user.is_some() {
        super::need_names(reader)?;
        if query.get("database").is_none() {
            return Err(Refusal::Bad("\"user\" needs \"database\" beside it".to_owned()));
        }
    }
    let model = web.model.borrow();
    let (step_s, steps) = match model.series(query.get("database"), user) {
        Some((series, clock)) => {
            let (step_s, steps) = series.since(clock, window_s, after_s);
            (step_s, steps.collect::<Vec<_>>())
        }
        // The subject is known, but its first step has not ended yet.
        None if model.awaits_series(query.get("database"), user) => (1, Vec::new()),
        None => return Err(Refusal::NotFound("No series are kept for this.")),
    };
    let columns: Map<String, Value> = COLUMNS
        .iter()
        .enumerate()
        .map(|(place, name)| {
            let column: Vec<Value> = steps.iter().map(|(_, values)| number(values[place])).collect();
            ((*name).to_owned(), column.into())
        })
        .collect();
    let ends: Vec<f64> = steps.iter().map(|(end_s, _)| *end_s).collect();
    Ok(json!({ "step_s": step_s, "time_s": ends, "columns": columns }))
}

/// Rounds a value to three decimals; NaN becomes null.
fn number(value: f32) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e7 {
        return Value::from(value as i64);
    }
    Value::from((f64::from(value) * 1_000.0).round() / 1_000.0)
}
